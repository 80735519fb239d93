"""Builds everything registered and collects the errors, for ``manage.py check``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from django.apps import apps

from ..core.annotations import bare_signature, hints_of
from ..core.current_task import dry_run
from ..core.exceptions import InvalidWorkflow
from ..core.workflow_errors import DefinitionError, DefinitionErrorCode, shown
from .definition_registry import Builder, Definition, definition_registry
from .workflow import Workflow


def find_errors() -> Iterator[DefinitionError]:
    """Yield the errors of all imported definitions and builders. Tasks that they send are discarded."""
    with dry_run():
        for definition in definition_registry.definitions.values():
            yield from _of_definition(definition)
        for builder in definition_registry.builders.values():
            yield from _of_builder(builder)
    yield from _undecorated_builders()


def _of_definition(definition: type[Definition]) -> Iterator[DefinitionError]:
    """Yield the errors of a definition in each of its cases; those of the class alone if it needs arguments."""
    meta = definition._meta
    cases = meta.options.cases
    if cases or not _needs_arguments(definition.build_with):
        yield from _of_calls(definition.build_with, meta.name, cases or ({},))
    else:
        yield from (DefinitionError(code, meta.name, None, problem) for code, problem in meta.errors)


def _of_builder(builder: Builder) -> Iterator[DefinitionError]:
    if not isinstance(builder.cases, list | tuple):
        problem = f"cases is {shown(builder.cases)}; allowed: a list of dicts."
        yield DefinitionError(DefinitionErrorCode.INVALID_CASE, builder.path, None, problem)
        return
    if not builder.cases and _needs_arguments(builder.func):
        problem = f"it takes {bare_signature(builder.func)} and has no cases; allowed: at least one."
        yield DefinitionError(DefinitionErrorCode.BUILDER_WITHOUT_CASES, builder.path, None, problem)
        return
    yield from _of_calls(builder.func, builder.path, builder.cases or ({},))


def _of_calls(function: Callable[..., Any], name: str, cases: Any) -> Iterator[DefinitionError]:
    errors: dict[DefinitionError, None] = {}  # an error of several cases is yielded once
    for number, case in enumerate(cases):
        for each in _of_case(function, name, f"case {number}, {shown(case)}", case):
            errors[each] = None
    yield from errors


def _of_case(function: Callable[..., Any], name: str, where: str, case: Any) -> Iterator[DefinitionError]:
    if not isinstance(case, Mapping):
        yield DefinitionError(DefinitionErrorCode.INVALID_CASE, name, None, f"{where}; allowed: a dict of arguments.")
        return
    try:
        bare_signature(function).bind(**case)
    except TypeError as error:
        problem = f"{where}: {error}; allowed: {bare_signature(function)}."
        yield DefinitionError(DefinitionErrorCode.INVALID_CASE, name, None, problem)
        return
    try:
        workflow = function(**case)
    except InvalidWorkflow as error:
        yield from error.mistakes
    except Exception as error:  # noqa: BLE001  # user code may raise anything
        yield DefinitionError(
            DefinitionErrorCode.BUILDER_FAILED, name, None, f"{where}, raised {error!r}; allowed: no error."
        )
    else:
        if not isinstance(workflow, Workflow):
            problem = f"{where}, returned {shown(workflow)}; allowed: a Workflow."
            yield DefinitionError(DefinitionErrorCode.BUILDER_FAILED, name, None, problem)


def _needs_arguments(function: Callable[..., Any]) -> bool:
    try:
        bare_signature(function).bind()
    except TypeError:
        return True
    return False


def _undecorated_builders() -> Iterator[DefinitionError]:
    """Yield an error for each public function that is annotated to return a Workflow and has no decorator."""
    functions = {builder.func for builder in definition_registry.builders.values()}
    for module in _modules():
        for name, function in list(vars(module).items()):
            is_own = isinstance(function, FunctionType) and function.__module__ == module.__name__
            if is_own and not name.startswith("_") and function not in functions and _returns_workflow(function):
                problem = f"{module.__name__}.{name} returns a Workflow; allowed: with @workflow_builder."
                yield DefinitionError(DefinitionErrorCode.UNDECORATED_BUILDER, name, None, problem)


def _returns_workflow(function: FunctionType) -> bool:
    hint = hints_of(function).get("return")
    return hint is Workflow or getattr(hint, "__origin__", None) is Workflow


def _modules() -> Iterator[ModuleType]:
    names = {f"{config.name}.tasks" for config in apps.get_app_configs()}
    names |= {definition.__module__ for definition in definition_registry.definitions.values()}
    names |= {builder.func.__module__ for builder in definition_registry.builders.values()}
    for name in sorted(names - {"horsies_django.workflows.workflow"}):
        if (module := sys.modules.get(name)) is not None:
            yield module
