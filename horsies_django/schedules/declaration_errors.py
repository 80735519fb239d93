"""Find every error of the schedules that code declares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from ..core.compat import InvalidTask, task_backends
from ..core.schedule_patterns import Cron
from ..enqueue.backend import HorsiesBackend
from .declaration import DeclaredSchedule, declarations
from .validation import problems_of


@dataclass(frozen=True, slots=True)
class DeclarationError:
    """One error of a declared schedule, or a warning; ``is_duplicate`` if another schedule has the same name."""

    schedule: str
    place: str
    problem: str
    is_duplicate: bool = False
    is_warning: bool = False

    def __str__(self) -> str:
        return f"schedule {self.schedule!r} ({self.place}): {self.problem}"


def declaration_errors() -> Iterator[DeclarationError]:
    """Yield every error and warning. Sends nothing and queries no database."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for declared in declarations:
        by_name[str(declared.name)].append(declared.place)
        errors = list(errors_of(declared))
        yield from errors or warnings_of(declared)
    for name, places in by_name.items():
        for place in dict.fromkeys(places) if len(places) > 1 else ():
            if others := " and ".join(dict.fromkeys(other for other in places if other != place)):
                problem = f"the name is that of the one in {others} too"
            else:
                problem = f"this line declares {len(places)} of that name"
            yield DeclarationError(name, place, f"{problem}; allowed: a name for each.", is_duplicate=True)


def errors_of(declared: DeclaredSchedule) -> Iterator[DeclarationError]:
    """Yield the errors of one schedule, without comparing it to others.

    Yields nothing if its backend is not a HorsiesBackend: tests may use another one, without schedules.
    """
    if _is_foreign_backend(declared.backend):
        return
    problems = list(declared.problems())
    if not problems:
        try:
            row = declared.row("")
        except (InvalidTask, ImproperlyConfigured, TypeError, ValueError) as error:
            problems = [str(error)]
        else:
            problems = [sentence for found in problems_of(row).values() for sentence in found]
    for problem in problems:
        yield DeclarationError(str(declared.name), declared.place, problem)


def warnings_of(declared: DeclaredSchedule) -> Iterator[DeclarationError]:
    """Yield a warning for each part of the cron expression of a valid schedule that cron reads differently."""
    for sentence in declared.when.warnings() if isinstance(declared.when, Cron) else ():
        yield DeclarationError(str(declared.name), declared.place, sentence, is_warning=True)


def _is_foreign_backend(alias: str) -> bool:
    return alias in task_backends.settings and not isinstance(task_backends[alias], HorsiesBackend)
