"""Read the settings of a backend into one typed object, and report all mistakes at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from datetime import timedelta
from typing import Any, Final

from django.conf import settings

from .option_parsers import DURATION_ALLOWED, RETENTION, RETENTION_STATES, OptionParser
from .options import SECTIONS, AboutOptions, Options, Problem, QueueOptions, RetentionOptions, WorkerOptions


class Hidden:
    """Stands for a secret value in a problem."""

    def __repr__(self) -> str:
        return "(hidden)"


#: The keys that Django reads in a backend's settings.
_KEYS: Final = dict.fromkeys(("BACKEND", "QUEUES", "OPTIONS"))


@dataclass(frozen=True, slots=True)
class Parsed:
    """The valid options and every problem found."""

    options: Options
    problems: tuple[Problem, ...]


def parse(alias: str, stored: object, queues: set[str]) -> Parsed:
    """Read the OPTIONS of ``alias``. Never raises: a bad value is reported as a problem and replaced by its default."""
    root = f"TASKS['{alias}']['OPTIONS']"
    problems: list[Problem] = []
    if not isinstance(stored, Mapping):
        return Parsed(Options(), (Problem(root, stored, "a dict", "Give OPTIONS as a dict, or leave it out."),))
    values = _section(Options, stored, root, problems)
    for name, kind in SECTIONS.items():
        if name not in stored:
            continue
        if kind is RetentionOptions and not isinstance(stored[name], Mapping):
            values[name] = _plain_retention(stored[name], f"{root}['{name}']", problems)
        else:
            values[name] = kind(**_section(kind, stored[name], f"{root}['{name}']", problems))
    if "queues" in stored:
        values["queues"] = dict(_queues(stored["queues"], queues, f"{root}['queues']", problems))
    if "about" in stored:
        values["about"] = dict(_about(stored["about"], f"{root}['about']", problems))
    options = Options(**values)
    for name in ("recovery", "defaults"):
        problems += getattr(options, name).rules_between_keys(f"{root}['{name}']")
    if not settings.USE_TZ:
        problems.append(Problem("USE_TZ", False, "True, as the queue compares times with a zone", "Set USE_TZ = True."))
    problems += _unknown_aliases(options, root)
    return Parsed(options, tuple(problems))


def _unknown_aliases(options: Options, root: str) -> Iterator[Problem]:
    """Yield a problem for each database that DATABASES does not have."""
    hints = {
        "database": "Name the alias of DATABASES that holds the queue's tables.",
        "listen_database": "Name an alias of DATABASES that leads to the same database without a pooler.",
        "read_database": "Name an alias of DATABASES that leads to a replica of the database.",
    }
    for name, hint in hints.items():
        if (value := getattr(options, name)) and value not in settings.DATABASES:
            yield Problem(f"{root}['{name}']", value, " or ".join(map(repr, settings.DATABASES)), hint)


def backend_problems(alias: str, stored: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems in the settings of ``alias`` outside its OPTIONS. Django itself accepts any key there."""
    for key, value in stored.items():
        if key not in _KEYS:
            hint = _suggest(str(key).upper(), _KEYS) or _hint_of_option(key)
            yield Problem(f"TASKS['{alias}'][{key!r}]", value, ", ".join(_KEYS), hint, True)
    names = stored.get("QUEUES", [])
    if not isinstance(names, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in names):
        hint = 'Give a list, like ["default", "emails"]; [] allows any name.'
        yield Problem(f"TASKS['{alias}']['QUEUES']", names, "a list of names of queues", hint)


def _hint_of_option(key: object) -> str:
    if str(key).lower() in Options.__dataclass_fields__:
        return f"Put {str(key).lower()!r} into OPTIONS."
    return "Remove it, or see the page on settings."


def worker_option(name: str, value: object) -> Any:
    """Parse one worker option given outside the settings. Raises ValueError saying what is allowed."""
    rule: OptionParser = WorkerOptions.__dataclass_fields__[name].metadata["rule"]
    try:
        return rule.parse(value)
    except ValueError:
        raise ValueError(f"{value!r} is not allowed; allowed: {rule.allowed}") from None


def _about(stored: object, path: str, problems: list[Problem]) -> Iterator[tuple[str, AboutOptions]]:
    if not isinstance(stored, Mapping) or not all(isinstance(label, str) for label in stored):
        problems.append(Problem(path, stored, "a dict of a model's label to options", "See the page on settings."))
        return
    for label, options in stored.items():
        yield label, AboutOptions(**_section(AboutOptions, options, f"{path}[{label!r}]", problems))


def _queues(stored: object, names: set[str], path: str, problems: list[Problem]) -> Iterator[tuple[str, QueueOptions]]:
    if not isinstance(stored, Mapping):
        problems.append(Problem(path, stored, "a dict of queue name to options", "See the page on settings."))
        return
    for name, options in stored.items():
        if names and name not in names:
            allowed = ", ".join(sorted(names))
            hint = _suggest(name, names) or "Add the name to QUEUES too, or remove it here."
            problems.append(Problem(f"{path}[{name!r}]", name, f"the names in QUEUES: {allowed}", hint, True))
        yield name, QueueOptions(**_section(QueueOptions, options, f"{path}[{name!r}]", problems))


def _plain_retention(value: object, path: str, problems: list[Problem]) -> RetentionOptions:
    """Read a plain value, which applies to completed tasks."""
    try:
        return RetentionOptions(completed=RETENTION.parse(value))
    except ValueError:
        allowed = f"{DURATION_ALLOWED}, or a dict of them for {', '.join(RETENTION_STATES)}"
        problems.append(Problem(path, value, allowed, "See the page on settings for its keys."))
        return RetentionOptions()


def _section(kind: Any, stored: object, path: str, problems: list[Problem]) -> dict[str, Any]:
    if not isinstance(stored, Mapping):
        problems.append(Problem(path, stored, "a dict", "See the page on settings for its keys."))
        return {}
    fields_by_name: dict[str, Field[Any]] = {entry.name: entry for entry in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in stored.items():
        if key not in fields_by_name:
            hint = _suggest(key, fields_by_name) or "Remove it, or see the page on settings."
            problems.append(Problem(f"{path}[{key!r}]", value, ", ".join(fields_by_name), hint, True))
        elif isinstance(value, Mapping) and (keys := fields_by_name[key].metadata.get("keys")):
            values[key] = _section(keys, value, f"{path}[{key!r}]", problems)
        elif rule := fields_by_name[key].metadata.get("rule"):
            try:
                values[key] = rule.parse(value)
            except (ValueError, ImportError):
                hint = f"Leave it out for the default, {_default(fields_by_name[key])!r}."
                shown = Hidden() if rule.is_secret else value
                problems.append(Problem(f"{path}[{key!r}]", shown, rule.allowed, hint))
    return values


def _default(entry: Field[Any]) -> object:
    if "default" in entry.metadata:
        return entry.metadata["default"]
    if callable(entry.default_factory):
        return entry.default_factory()
    return str(entry.default) if isinstance(entry.default, timedelta) else entry.default


def _suggest(key: object, names: Mapping[str, Any] | set[str]) -> str:
    near = difflib.get_close_matches(str(key), list(names), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""
