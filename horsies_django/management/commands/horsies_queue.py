"""``manage.py horsies_queue``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from horsies_django.core.backends import ConfiguredBackend
from horsies_django.core.numbers import format_brief
from horsies_django.core.option_parsers import INHERIT
from horsies_django.core.printable import one_line
from horsies_django.core.queue_policy import parse_policy
from horsies_django.management.base import QueueCommand, number_text, table, usage_errors
from horsies_django.management.tasks.enqueue import parse_retention
from horsies_django.models import Queue, Worker
from horsies_django.models.queue import QueueQuerySet
from horsies_django.models.worker import WorkerQuerySet
from horsies_django.ops.inspector import QueueNotEmpty, delete_queue
from horsies_django.ops.metrics import collect
from horsies_django.ops.metrics.snapshot import QueueMetrics

#: Flag, metavar and help of what can be set.
_FLAGS: Final = {
    "max_concurrency": ("N", "Maximum tasks of the queue that run at once, across all workers; 0 stops the queue."),
    "rate_limit": ("RATE", "Maximum task starts per period, like 100/m, or '100/m, 10' with a burst; or none."),
    "priority": ("N", "Rank of the queue for workers with strict order."),
    "weight": ("N", "Share of the queue for workers with weighted order."),
    "retention": (
        "DURATION",
        'How long to keep its completed tasks: seconds, a text like "7d", or forever; or by state: '
        "completed=1d,failed=30d.",
    ),
}


#: Maximum ids that an error lists.
MAX_LISTED: Final = 50

#: What each action on workers, or on queues, does, and its messages if the worker or the queue changed or not.
_QUIET_ACTIONS: Final = {
    "quiet": (WorkerQuerySet.quiet, "The worker %s is quiet.", "The worker %s is quiet already, or is stopping."),
    "unquiet": (WorkerQuerySet.resume, "The worker %s is resumed.", "The worker %s is not quiet."),
}
_PAUSE_ACTIONS: Final = {
    "pause": (QueueQuerySet.pause, "The queue %s is paused.", "The queue %s is paused already."),
    "resume": (QueueQuerySet.resume, "The queue %s is resumed.", "The queue %s is not paused."),
}


class Command(QueueCommand):
    """Pauses, resumes, configures, lists and deletes queues, and makes workers quiet."""

    help = (
        "Pause, resume, configure, list or delete queues, or make workers quiet: they claim nothing and stay. Workers "
        "apply a change within a second; running tasks continue. Each value set here overrides the settings; 'inherit' "
        "restores the value of the settings. --backend also reads HORSIES_QUEUE_BACKEND; the flag takes precedence. "
        "Exit status: 0 done, or nothing to change; 1 a queue can't be deleted, a worker is not alive, or the database "
        "or its tables are unavailable; 2 wrong usage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_backend(parser)
        actions = parser.add_subparsers(
            dest="action", required=True, metavar="pause|resume|set|list|delete|quiet|unquiet"
        )
        for action, text in (
            ("pause", "Stop workers from claiming tasks of these queues."),
            ("resume", "Let workers claim tasks of these queues again."),
            ("set", "Set limits, order and retention of these queues."),
            ("delete", "Delete these queues: their ended tasks and their configuration."),
        ):
            subparser = self.add_action(actions, action, text, "Print one JSON object.")
            subparser.add_argument("names", nargs="+", metavar="QUEUE")
            if action == "delete":
                subparser.add_argument("--force", action="store_true", help="Also delete waiting tasks.")
            if action == "set":
                for name, (metavar, help_text) in _FLAGS.items():
                    subparser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=help_text)
        for action, text in (
            ("quiet", "Have workers claim nothing more; they finish what runs, and stay until resumed or stopped."),
            ("unquiet", "Let quiet workers claim again."),
        ):
            subparser = self.add_action(actions, action, text, "Print one JSON object.")
            subparser.add_argument(
                "workers", nargs="*", metavar="WORKER", help="The id of a live worker, one for each runner."
            )
            subparser.add_argument("--name", help="Workers with this --name; those without one have their host's name.")
            subparser.add_argument("--all", action="store_true", help="Every live worker.")
        text = "Print every known queue: due and blocked tasks, how long the oldest have waited, and its configuration."
        self.add_action(actions, "list", text, "Print one JSON object; times are seconds.")

    def handle(self, *args: Any, **options: Any) -> None:
        action = options["action"]
        with usage_errors():
            backend = self.backend(options["backend"])
            names = _names(options.get("names") or (), backend, may_be_gone=action == "delete")
            rules = _rules(options) if action == "set" else {}
            if action in _QUIET_ACTIONS and sum(map(bool, (options["workers"], options["name"], options["all"]))) != 1:
                raise ValueError("Which workers? Allowed: ids, or --name NAME, or --all.")
        with self.tables(backend.config.database):
            if action in _QUIET_ACTIONS:
                alive = Worker.objects.using(backend.config.database).alive(backend.config.recovery.stale_after)
                act, done, unchanged = _QUIET_ACTIONS[action]
                changed = {key: bool(act(alive.filter(pk=key))) for key in _chosen(alive, options)}
                self._print_changes(options, changed, done, unchanged, nothing="No worker is alive.")
            elif action == "delete":
                self._delete(names, backend, force=options["force"], is_json=options["json"])
            elif action == "list":
                self._list(backend, is_json=options["json"])
            else:
                rows = Queue.objects.using(backend.config.database)
                change, done, unchanged = _queue_change(action, rules)
                changed = {name: bool(change(rows.named(name))) for name in names}
                self._print_changes(options, changed, done, unchanged)

    def _print_changes(
        self, options: dict[str, Any], changed: dict[str, bool], done: str, unchanged: str, nothing: str = ""
    ) -> None:
        if options["json"]:
            self.stdout.write(json.dumps({"action": options["action"], "changed": changed}))
            return
        self.write_lines(*((done if is_changed else unchanged) % name for name, is_changed in changed.items()))
        if not changed:
            self.stdout.write(nothing)

    def _delete(self, names: Sequence[str], backend: ConfiguredBackend, *, force: bool, is_json: bool) -> None:
        for name in names:
            try:
                deleted = delete_queue(name, backend.config.database, force=force)
            except QueueNotEmpty as error:
                raise CommandError(str(error)) from error
            if is_json:
                self.stdout.write(json.dumps(deleted.as_json()))
                continue
            row = " and what was set for it" if deleted.had_row else ""
            self.write_lines(f"The queue {name}: deleted {deleted.tasks} tasks{row}.")
            if name in backend.queues:
                self.write_lines(f"The queue {name} is in QUEUES, so tasks may still be sent to it.")

    def _list(self, backend: ConfiguredBackend, *, is_json: bool) -> None:
        queues = collect(backend.config).queues
        if is_json:
            entries = [queue.status.as_json() | queue.depth.as_json() for queue in queues]
            self.stdout.write(json.dumps({"queues": entries}, indent=2))
            return
        columns = ("queue", "due", "latency", "blocked", "oldest blocked", "")
        for line in table(columns, [_row(queue) for queue in queues], 1):
            self.stdout.write(line)


def _row(queue: QueueMetrics) -> tuple[str, ...]:
    depth, status = queue.depth, queue.status
    return (
        queue.name,
        number_text(depth.due, depth.is_more),
        format_brief(depth.waits),
        number_text(depth.blocked, depth.is_more_blocked),
        format_brief(depth.blocked_waits),
        "; ".join([*(["paused"] if status.is_paused else []), *status.descriptions] or ["active"]),
    )


def _queue_change(action: str, rules: dict[str, Any]) -> tuple[Callable[[QueueQuerySet], int], str, str]:
    """Return the function that changes a queue's row, and the messages if it changed or not."""
    if action in _PAUSE_ACTIONS:
        return _PAUSE_ACTIONS[action]
    values = ", ".join(f"{name} = {INHERIT if value is None else value}" for name, value in rules.items())
    return (lambda row: row.set(**rules)), f"The queue %s: {values.replace('%', '%%')}.", ""


def _rules(options: dict[str, Any]) -> dict[str, Any]:
    """Return the values to set. Raises ValueError naming the flag, its value and what is allowed."""
    texts = {name: options[name] for name in _FLAGS if options[name] is not None}
    if not texts:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in _FLAGS)
        raise ValueError(f"There is nothing to set; allowed: {flags}.")
    try:
        return parse_policy({name: _read(name, text) for name, text in texts.items()})
    except ValueError as error:
        raise ValueError(str(error).replace("or None (as", f"or {INHERIT!r} (as")) from None


def _read(name: str, text: Any) -> object:
    if not isinstance(text, str):
        return text
    if text == INHERIT:
        return None
    if name == "retention" and "=" in text:
        return parse_retention(text)
    return int(text) if text.lstrip("-").isdigit() else text


def _names(names: Sequence[str], backend: ConfiguredBackend, *, may_be_gone: bool) -> list[str]:
    for name in names:
        if not may_be_gone and backend.queues and name not in backend.queues:
            allowed = ", ".join(sorted(backend.queues))
            raise ValueError(f"There is no queue {name!r} in TASKS[{backend.alias!r}]; its QUEUES are {allowed}.")
        if not 0 < len(name) <= 100 or "\0" in name:
            raise ValueError(f"{name!r} is no name of a queue; allowed: 1 to 100 characters.")
    return list(dict.fromkeys(names))


def _chosen(alive: WorkerQuerySet, options: dict[str, Any]) -> Sequence[str]:
    """Return the ids of the chosen workers. Raises CommandError if one is not alive, or if none has the name."""
    worker_ids = list(alive.order_by("pk").values_list("pk", flat=True))
    if options["all"]:
        return worker_ids
    if name := options["name"]:
        named = alive.filter(Q(name=name) | Q(name="", hostname=name)).order_by("pk").values_list("pk", flat=True)
        if not named:
            raise CommandError(one_line(f"No live worker has the name {name!r}. {_alive(worker_ids)}"))
        return list(named)
    if unknown := [worker_id for worker_id in options["workers"] if worker_id not in worker_ids]:
        raise CommandError(one_line(f"There is no live worker {', '.join(map(repr, unknown))}. {_alive(worker_ids)}"))
    return list(dict.fromkeys(options["workers"]))


def _alive(worker_ids: Sequence[str]) -> str:
    more = f" and {len(worker_ids) - MAX_LISTED} more" if len(worker_ids) > MAX_LISTED else ""
    return f"Alive: {', '.join(worker_ids[:MAX_LISTED])}{more}." if worker_ids else "None is alive."
