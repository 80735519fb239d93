"""``horsies_queue quiet`` and ``unquiet``: which workers they mean, and what they do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from django.db.models import Q

from horsies_django.core.backends import ConfiguredBackend
from horsies_django.core.printable import one_line
from horsies_django.models import Worker
from horsies_django.models.worker import WorkerQuerySet

#: Maximum ids that an error lists.
MAX_LISTED: Final = 50

#: What each action does, and its messages if the worker changed or not.
ACTIONS: Final = {
    "quiet": (WorkerQuerySet.quiet, "The worker %s is quiet.", "The worker %s is quiet already, or is stopping."),
    "unquiet": (WorkerQuerySet.resume, "The worker %s is resumed.", "The worker %s is not quiet."),
}


def add_arguments(parser: CommandParser) -> None:
    """Add the flags that choose workers."""
    parser.add_argument("workers", nargs="*", metavar="WORKER", help="The id of a live worker, one for each runner.")
    parser.add_argument("--name", help="Workers with this --name; those without one have their host's name.")
    parser.add_argument("--all", action="store_true", help="Every live worker.")


def check_choice(options: dict[str, Any]) -> None:
    """Raise ValueError unless the flags choose workers in exactly one way."""
    if sum(map(bool, (options["workers"], options["name"], options["all"]))) != 1:
        raise ValueError("Which workers? Allowed: ids, or --name NAME, or --all.")


def change_workers(action: str, options: dict[str, Any], backend: ConfiguredBackend) -> Iterator[str]:
    """Make the chosen workers quiet or resume them; yield the lines to print. Nothing is done if one is unknown.

    Raises CommandError if a worker is not alive, or if none has the name.
    """
    alive = Worker.objects.using(backend.config.database).alive(backend.config.recovery.stale_after)
    ids = list(_chosen(alive, options))
    act, done, unchanged = ACTIONS[action]
    changed = {worker_id: bool(act(alive.filter(pk=worker_id))) for worker_id in ids}
    if options["json"]:
        yield json.dumps({"action": action, "changed": changed})
        return
    for worker_id, is_changed in changed.items():
        yield one_line((done if is_changed else unchanged) % worker_id)
    if not changed:
        yield "No worker is alive."


def _chosen(alive: WorkerQuerySet, options: dict[str, Any]) -> Sequence[str]:
    known = list(alive.order_by("pk").values_list("pk", flat=True))
    if options["all"]:
        return known
    if name := options["name"]:
        named = alive.filter(Q(name=name) | Q(name="", hostname=name)).order_by("pk").values_list("pk", flat=True)
        if not named:
            raise CommandError(one_line(f"No live worker has the name {name!r}. {_alive(known)}"))
        return list(named)
    if unknown := [worker_id for worker_id in options["workers"] if worker_id not in known]:
        raise CommandError(one_line(f"There is no live worker {', '.join(map(repr, unknown))}. {_alive(known)}"))
    return list(dict.fromkeys(options["workers"]))


def _alive(known: Sequence[str]) -> str:
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    return f"Alive: {', '.join(known[:MAX_LISTED])}{more}." if known else "None is alive."
