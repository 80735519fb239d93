"""The pages "Coming from …" name nothing of this package that does not exist.

In each table of these pages the column *here* has the names of this package. Each code span in that column is a
command (``manage.py …``), flags of the worker (``--…``), or Python. In Python, a variable of :data:`VARIABLES` is an
instance of that class; every other name that is called, or whose attribute is read, must be importable from
:data:`MODULES`. Keyword arguments are looked up in the signature, ``OPTIONS["worker"]["threads"]`` among the settings.
Plain arguments stand for anything.
"""

import ast
import builtins
import contextlib
import importlib
import inspect
import re
import shlex
import sys
import textwrap
import types
from dataclasses import dataclass, fields
from typing import Any

import pytest
from django.conf import global_settings
from django.core.management import get_commands, load_command_class
from django.db.models import Manager

import horsies_django
from horsies_django import HorsiesTask, exceptions, log, middleware, models, signals, testing
from horsies_django.core import options
from horsies_django.core.status import TaskStatus
from horsies_django.core.workflow_errors import WorkflowCode
from horsies_django.enqueue import task as task_module
from horsies_django.enqueue.node_factories import TaskNodeOptions
from horsies_django.enqueue.task import TaskOptions
from horsies_django.ops import inspector
from horsies_django.schedules.declaration import ScheduleOptions
from horsies_django.workflows.workflow import WorkflowKeywords
from tests.conftest import ROOT

PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("from-*.md"))}

MODULES = [horsies_django, exceptions, inspector, log, middleware, models, signals, testing]
VARIABLES = {
    "task": HorsiesTask,
    "handle": horsies_django.TaskHandle,
    "result": horsies_django.TaskResult,
    "error": horsies_django.TaskError,
    "context": horsies_django.TaskContext,
    "node": horsies_django.TaskNode,
    "workflow": horsies_django.Workflow,
    "run": horsies_django.WorkflowHandle,
    "batch": horsies_django.BatchHandle,
}
SECTIONS = {
    "recovery": options.RecoveryOptions,
    "retention": options.RetentionOptions,
    "worker": options.WorkerOptions,
    "embedded": options.EmbeddedOptions,
    "defaults": options.DefaultOptions,
    "admin": options.AdminOptions,
    "queues": options.QueueOptions,
}

#: The keyword arguments of what takes ``**options: Any``.
KEYWORDS = {
    horsies_django.task: {*TaskOptions.__optional_keys__, "gather", "takes_context"},
    HorsiesTask.with_options: task_module._SEND_OPTIONS,
    HorsiesTask.node: TaskNodeOptions.__optional_keys__,
    HorsiesTask.map: {*TaskNodeOptions.__optional_keys__, "over", "param", "kwargs"},
    horsies_django.Workflow: {*WorkflowKeywords.__optional_keys__, "output"},
}
#: The names that may stand alone: options, states, codes, and what is importable.
WORDS = {
    *TaskOptions.__optional_keys__,
    *TaskNodeOptions.__optional_keys__,
    *ScheduleOptions.__optional_keys__,
    *WorkflowKeywords.__optional_keys__,
    *(entry.name for kind in (HorsiesTask, horsies_django.RetryPolicy, options.Options) for entry in fields(kind)),
    *(status.value for status in TaskStatus),
    *(code.value for code in WorkflowCode),
    *(code.value for kind in ("Operational", "Outcome", "Contract") for code in getattr(horsies_django, f"{kind}Code")),
    *(name for name in vars(global_settings) if name.isupper()),
    "OPTIONS",
    "QUEUES",
}

UNKNOWN = object()


@dataclass(frozen=True)
class Of:
    """An instance of a class."""

    kind: type


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_ours_on_a_page_exists(page):
    spans = [span for cell in _cells(PAGES[page]) for span in re.findall(r"`([^`]+)`", cell)]

    assert len(spans) > 20
    assert [f"{span}: {problem}" for span in spans for problem in _problems(span)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_import_in_a_block_of_a_page_exists(page):
    for _, block in re.findall(r"^( *)```py(?:thon)?\n(.*?)^\1```$", PAGES[page], re.M | re.S):
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("horsies_django"):
                module = importlib.import_module(node.module)
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text().splitlines()

    assert len(PAGES) == 8
    assert set(PAGES) <= set(index)


@pytest.mark.parametrize(
    "code",
    [
        "task.delay(2)",
        "task.with_options(countdown=5)",
        "task.with_options(waits_for=node)",
        "task.with_options(priority=5).delay(2)",
        "@task(bind=True)",
        "handle.info().meta",
        "context.request",
        "AsyncResult(id)",
        'schedule("report", report, Cron("* * * * *"), expires=5)',
        'schedule("report", report, crontab("* * * * *"))',
        "Every(weeks=1)",
        "RetryPolicy.exponential(2, retry_jitter=True)",
        "Queue.objects.named('emails').stop()",
        "Worker.objects.filter(name='w1').shutdown()",
        'OPTIONS["worker"]["concurrency"]',
        'OPTIONS["queues"]["emails"]["cap"]',
        "visibility_timeout",
        "manage.py horsies_worker --concurrency 8",
        "manage.py horsies_task inspect",
        "manage.py horsies_beat",
        "--pool threads",
    ],
)
def test_a_name_that_does_not_exist_is_found(code):
    assert list(_problems(code)) != []


def _cells(text):
    """Yield what each row of each table has in the column *here*."""
    for table in re.findall(r"^\|.*(?:\n\|.*)+$", text, re.M):
        header, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in table.splitlines())
        column = header.index("here")
        yield from (row[column].replace("\\|", "|") for row in rows)


def _problems(span):
    """Yield a text for each name in a code span that does not exist."""
    if span.startswith("manage.py "):
        yield from _problems_of_command(shlex.split(span)[1:])
    elif span.startswith("--"):
        yield from _problems_of_command(["horsies_worker", *span.split()])
    elif not re.fullmatch(r"[\w/]+\.(py|md)|async def", span):
        yield from _problems_of_python(span.removeprefix("@").replace("…", "..."), is_decorator=span.startswith("@"))


def _problems_of_command(words):
    name, *words = words
    if name not in get_commands():
        yield f"no command {name}"
        return
    parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
    for action in parser._actions:
        if isinstance(action.choices, dict):  # the action of a command: its next word
            parser = action.choices.get(words[0])
            if parser is None:
                yield f"no action {words[0]}"
                return
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in parser._option_string_actions:
            yield f"no flag {word}"


def _problems_of_python(code, *, is_decorator):
    variables = {} if is_decorator else VARIABLES
    statements = ast.parse(code).body
    if [type(one) for one in statements] == [ast.Expr] and isinstance(statements[0].value, ast.Name):
        name = statements[0].value.id
        if name not in WORDS and _named(name, variables) is None:
            yield f"no name {name}"
        return
    for node in (inner for statement in statements for inner in ast.walk(statement)):
        if isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
            try:
                _resolved(node, variables)
            except LookupError as error:
                yield str(error)


def _named(name, variables):
    """Return what a name stands for; None if there is no such name."""
    if name in variables:
        return Of(variables[name])
    if name == "horsies_django":
        return horsies_django
    return next((getattr(module, name) for module in [*MODULES, builtins] if hasattr(module, name)), None)


def _resolved(node, variables) -> Any:
    """Return the object that an expression gives, or Of its class, as far as that is known. Raises LookupError."""
    match node:
        case ast.Name(name):
            if (found := _named(name, variables)) is None:
                raise LookupError(f"no name {name}")
            return found
        case ast.Attribute(owner, name):
            return _attribute(_resolved(owner, variables), name)
        case ast.Call(function, _, keywords):
            return _called(_resolved(function, variables), {word.arg for word in keywords} - {None})
        case ast.Subscript():
            _check_setting(node)
    return UNKNOWN


def _attribute(owner, name):
    if owner is UNKNOWN:
        return UNKNOWN
    if isinstance(owner, Manager):
        owner = Of(owner._queryset_class)
    kind = owner.kind if isinstance(owner, Of) else owner
    hints = _hints(kind)
    if isinstance(owner, types.ModuleType):
        _import(f"{owner.__name__}.{name}")
    if not hasattr(kind, name) and name not in hints and not (isinstance(owner, Of) and name in _parameters(kind)):
        raise LookupError(f"{getattr(kind, '__name__', kind)} has no {name}")
    if name in ("filter", "exclude"):
        return lambda *_: owner  # a queryset gives one of its own class
    found = getattr(kind, name, UNKNOWN)
    if isinstance(found, property):
        return _instance_of(inspect.signature(found.fget).return_annotation, found.fget.__globals__)
    if callable(found) or isinstance(found, Manager) or not isinstance(owner, Of):
        return found
    return _instance_of(*hints.get(name, ("", {})))


def _import(module):
    """Import a module that is the attribute of a package; another attribute is left to the lookup."""
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(module)


def _called(callee, keywords):
    if callee is UNKNOWN or not callable(callee):
        return UNKNOWN
    if getattr(callee, "__name__", "") == "<lambda>":
        return callee()
    allowed = KEYWORDS.get(callee) or _keywords(callee)
    if allowed is not None and (unknown := keywords - allowed):
        raise LookupError(f"{callee.__qualname__}() takes no {', '.join(sorted(unknown))}")
    if isinstance(callee, type):
        return Of(callee)
    return _instance_of(inspect.signature(callee).return_annotation, getattr(callee, "__globals__", {}))


def _keywords(callee):
    """Return the names of the keyword arguments, None if there is no telling."""
    names = set()
    for parameter in _parameters(callee).values():
        names.add(parameter.name)
        if parameter.kind is parameter.VAR_KEYWORD:
            typed = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
            if typed is None:
                return None
            names |= vars(sys.modules[callee.__module__])[typed[1]].__optional_keys__
    return names


def _check_setting(node):
    """Raise LookupError for ``OPTIONS[…][…]`` with a key that does not exist."""
    keys = []
    while isinstance(node, ast.Subscript):
        keys.insert(0, node.slice.value if isinstance(node.slice, ast.Constant) else "")
        node = node.value
    if not (isinstance(node, ast.Name) and node.id == "OPTIONS"):
        return
    kind = options.Options
    for key in keys[:1] + keys[2 if keys[0] == "queues" else 1 :]:  # without the name of a queue
        if key not in {entry.name for entry in fields(kind)}:
            raise LookupError(f"{kind.__name__} has no {key}")
        kind = SECTIONS.get(key, options.Options)


def _instance_of(hint, names):
    """Return Of the class that an annotation begins with."""
    text = re.match(r"[\w.]+", hint if isinstance(hint, str) else getattr(hint, "__name__", ""))
    kind = names.get(text[0]) or _named(text[0], {}) if text else None
    return Of(kind) if isinstance(kind, type) else UNKNOWN


def _hints(kind):
    """Return the annotations of a class and of its bases, each with the names that it may use."""
    return {
        name: (hint, vars(sys.modules[base.__module__]))
        for base in reversed(getattr(kind, "__mro__", ()))
        for name, hint in vars(base).get("__annotations__", {}).items()
    }


def _parameters(callee):
    try:
        return inspect.signature(callee).parameters
    except (TypeError, ValueError):
        return {}
