"""Every mistake of the schedules that code declares, all at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from ..core.compat import InvalidTask, task_backends
from ..enqueue.backend import HorsiesBackend
from .declaring import DeclaredSchedule, declarations
from .validation import problems_of


@dataclass(frozen=True, slots=True)
class DeclarationError:
    """One mistake of a schedule; ``is_double`` if it is that its name is another's."""

    schedule: str
    place: str
    problem: str
    is_double: bool = False

    def __str__(self) -> str:
        return f"schedule {self.schedule!r} ({self.place}): {self.problem}"


def declaration_errors() -> Iterator[DeclarationError]:
    """Yield every mistake; nothing is sent, and no database is asked."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for declared in declarations:
        by_name[str(declared.name)].append(declared.place)
        yield from errors_of(declared)
    for name, places in by_name.items():
        for place in dict.fromkeys(places) if len(places) > 1 else ():
            if others := " and ".join(dict.fromkeys(other for other in places if other != place)):
                problem = f"the name is that of the one in {others} too"
            else:
                problem = f"this line declares {len(places)} of that name"
            yield DeclarationError(name, place, f"{problem}; allowed: a name for each.", is_double=True)


def errors_of(declared: DeclaredSchedule) -> Iterator[DeclarationError]:
    """Yield what is wrong with one, as far as it can be told by itself.

    Nothing is of one whose backend is none of ours: a project's tests may run on Django's own, where nothing is sent.
    """
    if _is_other_database(declared.backend):
        return
    flaws = list(declared.problems())
    if not flaws:
        try:
            row = declared.row("")
        except (InvalidTask, ImproperlyConfigured, TypeError, ValueError) as error:
            flaws = [str(error)]
        else:
            flaws = [sentence for found in problems_of(row).values() for sentence in found]
    for flaw in flaws:
        yield DeclarationError(str(declared.name), declared.place, flaw)


def _is_other_database(alias: str) -> bool:
    return alias in task_backends.settings and not isinstance(task_backends[alias], HorsiesBackend)
