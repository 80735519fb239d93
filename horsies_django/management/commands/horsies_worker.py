"""``manage.py horsies_worker``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser

from horsies_django.core.options import WorkerOptions
from horsies_django.core.platform import IS_POSIX
from horsies_django.core.read_settings import worker_option
from horsies_django.management.base import QueueCommand, usage_errors
from horsies_django.management.environment import METRICS_PORT, boolean, flag_or_variable, parse_address, parse_names
from horsies_django.management.reload import run_with_reload
from horsies_django.worker.config import Until, WorkerConfig
from horsies_django.worker.console_logging import accepts_records, log_to_console
from horsies_django.worker.figures import SupervisorFigures, serve_nothing
from horsies_django.worker.run_worker import run_worker

COMMAND: Final = "horsies_worker"

#: The flag of development.
RELOAD: Final = "--reload"

#: Seconds in which a log handler has to return before the process exits.
_LOG_TIMEOUT: Final = 1.0

#: Stands for all queues.
ALL: Final = "*"

#: Type, metavar and help of options that a flag, else an environment variable, else the settings define.
_OPTIONS: Final[dict[str, tuple[type, str, str]]] = {
    "processes": (int, "N", "Runner processes; each uses one core for Python code."),
    "threads": (int, "N", "Sync tasks that run at once in each runner."),
    "async_slots": (int, "N", "Coroutine tasks that run at once in each runner."),
    "prefetch": (int, "N", "Tasks claimed ahead for each kind of slot; other workers can't claim them."),
    "start_ahead": (
        int,
        "N",
        "Maximum short tasks started ahead of free threads; the number adapts to tasks that take milliseconds.",
    ),
    "poll_interval": (float, "SECONDS", "Maximum time between two polls of an idle worker that gets no notifications."),
    "max_tasks_per_child": (int, "N", "Replace a runner after this many tasks."),
    "max_memory_mb": (int, "MB", "Replace a runner that uses more memory than this."),
    "task_timeout": (float, "SECONDS", "Time limit of tasks that define none."),
    "timeout_grace": (float, "SECONDS", "How long a task over its time limit may take to stop."),
    "stall_timeout": (
        float,
        "SECONDS",
        "Kill a runner whose interpreter has been blocked or stopped for this long.",
    ),
    "order": (
        str,
        "ORDER",
        "Order between queues: priority (of each task), strict or weighted. See the page on queues.",
    ),
    "shutdown_timeout": (float, "SECONDS", "How long running tasks may continue after SIGTERM."),
    "name": (str, "NAME", "Prefix of the worker's id; each process start still gets a new id."),
    "heartbeat_file": (str, "PATH", "Write this file each second while a runner is healthy, for probes of its age."),
    "state_dir": (
        str,
        "DIR",
        "Keep here which bodies have begun; if all processes die at once, the next worker requeues the other tasks.",
    ),
}
_SWITCHES: Final = {
    "reaper": "Do not run a reaper in this worker.",
    "scheduler": "Do not run a scheduler in this worker.",
    "fork": "Start each runner as a new process, for code that is not fork-safe once imported.",
}


class Command(QueueCommand):
    """Runs tasks until stopped, until one claim is done, or until nothing is due."""

    help = (
        "Run tasks. The first SIGTERM, SIGHUP or Ctrl-C stops claiming and waits for running tasks. The second, and a "
        "SIGQUIT, stops at once. Each flag that takes a value, and each --no-…, also reads an environment variable: "
        "HORSIES_WORKER_THREADS for --threads. The flag takes precedence."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queues", metavar="A,B", help="Serve only these queues; '*' means all (default: QUEUES).")
        parser.add_argument("--exclude-queues", metavar="A,B", help="Serve all queues except these.")
        self.add_backend(parser)
        for name, (kind, metavar, text) in _OPTIONS.items():
            default = WorkerOptions.__dataclass_fields__[name].default
            shown = f"{text} Default, unless OPTIONS set it: {default or 'none'}."
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=shown)
        until = parser.add_mutually_exclusive_group()
        until.add_argument("--once", action="store_true", help="Make one claim, run the claimed tasks, and exit.")
        until.add_argument("--drain", action="store_true", help="Run until nothing is due, and exit.")
        for name, text in _SWITCHES.items():
            parser.add_argument(f"--no-{name}", action="store_true", default=None, help=text)
        text = (
            "Serve this worker's own metrics and health checks at this port, of 127.0.0.1 or of HOST. "
            "Needs horsies-django[prometheus]."
        )
        parser.add_argument(f"--{METRICS_PORT}", metavar="[HOST:]PORT", help=text)
        text = "Restart the worker when the project's code changes. For development."
        parser.add_argument(RELOAD, action="store_true", help=text)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["reload"]:
            if not self.owns_process:
                raise CommandError(f"{RELOAD} needs a process of its own: manage.py {COMMAND} {RELOAD}.", returncode=2)
            if not IS_POSIX:
                raise CommandError(f"{RELOAD} needs signals, which Windows does not have.", returncode=2)
            sys.exit(run_with_reload(RELOAD))
        log_to_console(options["verbosity"])
        with usage_errors():
            queues = parse_names(_variable("queues", options["queues"]))
            config = WorkerConfig.of(
                _variable("backend", options["backend"]) or "default",
                queues=[] if ALL in queues else queues,
                exclude_queues=parse_names(_variable("exclude-queues", options["exclude_queues"])),
                until=_until(options),
                **dict(_given_options(options)),
            )
            serve = _metrics_server(config, options[METRICS_PORT.replace("-", "_")])
        if not self.owns_process:
            config = replace(config, fork=False)  # other code runs in this process too
            if config.until is not Until.STOPPED:
                # Tests drain the test database, which new processes would not use.
                config = replace(config, processes=1)
        try:
            status = run_worker(config, options["verbosity"], owns_process=self.owns_process, serve=serve())
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        if self.owns_process and not accepts_records(_LOG_TIMEOUT):
            os._exit(status)  # the interpreter's own exit would wait for the handler
        if status:
            sys.exit(status)


def _given_options(options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options set by flags and environment. Raises ValueError naming the flag or variable."""
    for name, (kind, _, _) in _OPTIONS.items():
        where, value = flag_or_variable(COMMAND, name.replace("_", "-"), options.get(name), kind)
        if value is not None:
            yield name, _validated(where, name, value.total_seconds() if isinstance(value, timedelta) else value)
    for name in _SWITCHES:
        where, off = flag_or_variable(COMMAND, f"no-{name}", options.get(f"no_{name}"), boolean)
        if off is not None:
            yield name, _validated(where, name, not off if isinstance(off, bool) else off)


def _validated(where: str, name: str, value: Any) -> Any:
    try:
        return worker_option(name, value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}.") from error


_Serve = Callable[[SupervisorFigures], AbstractContextManager[None]]


def _metrics_server(config: WorkerConfig, flag_value: str | None) -> Callable[[], _Serve]:
    """Return a function that loads the server of metrics. Raises ValueError for a bad flag or variable.

    A worker that ends by itself serves none: it may be gone before it is asked, and there may be several.
    """
    where, value = flag_or_variable(COMMAND, METRICS_PORT, flag_value, str)
    if value is None:
        return lambda: serve_nothing
    address = parse_address(where, value)
    if config.until is not Until.STOPPED:
        if flag_value is not None:
            raise ValueError(f"{where}: not allowed with --once or --drain; allowed: a worker that runs until stopped.")
        return lambda: serve_nothing
    app: Any = apps.get_app_config("horsies_django")  # by name, because the extra that serves is above the commands
    return lambda: partial(app.load_metrics_server(), address=address, options=config.options.metrics)


def _variable(flag: str, value: Any) -> Any:
    return flag_or_variable(COMMAND, flag, value, str)[1]


def _until(options: dict[str, Any]) -> Until:
    if options["once"]:
        return Until.ONE_CLAIM
    return Until.DRAINED if options["drain"] else Until.STOPPED
