"""Tasks, conditions and workflows whose annotations name types that exist only for type checkers."""

import importlib
import sys

import pytest
from django.core.management import call_command

pytestmark = pytest.mark.django_db(transaction=True)

MODULE = """
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horsies_django import Unique, Workflow, WorkflowDefinition, task, workflow_builder

if TYPE_CHECKING:
    from decimal import Decimal

    from horsies_django import TaskContext, WorkflowContext
    from nowhere import Missing


@dataclass
class Parcel:
    weight: int
    sender: Missing = None


def longer(context: TaskContext) -> Missing:
    return context.attempt


def never(exception: Missing | None, result: "Missing") -> Missing:
    return None


@task(takes_context=True, unique=Unique(key="{times}"), max_attempts=3, backoff=longer)
def weigh(context: TaskContext, parcel: Parcel, times: int = 1, price: Decimal | None = None, *rest: Missing) -> int:
    return parcel.weight * times


@task(max_attempts=3, backoff=never)
async def identity(number: int, missing: list[Missing] | None = None) -> Missing | None:
    return number


def is_wanted(context: WorkflowContext) -> bool:
    return True


def unrelated(value: Missing.Inner[0] = 1, other: "Missing" = 2):
    pass


class Sort(WorkflowDefinition):
    class Meta:
        definition_key = __name__

    @classmethod
    def build_with(cls, *, missing: Missing = None) -> Workflow[Missing]:
        node = identity.node(run_when=is_wanted)(number=3)
        return Workflow("sort", [node], output=node)


@workflow_builder(cases=[{"missing": None}])
def sort(*, missing: Missing) -> Workflow[Missing]:
    return Sort.build()
"""

NAMES = {"text": "annotated_as_text", "lazy": "annotated_lazily"}


@pytest.fixture(
    params=[
        "text",
        pytest.param(
            "lazy", marks=pytest.mark.skipif(sys.version_info < (3, 14), reason="Python evaluates annotations at once")
        ),
    ],
)
def module(request, tmp_path, monkeypatch, settings):
    """Return the module, imported once, as a worker would: dataclasses of its tasks are known."""
    name = NAMES[request.param]
    future = "from __future__ import annotations\n" if request.param == "text" else ""
    if name not in sys.modules:
        (tmp_path / f"{name}.py").write_text(future + MODULE)
        monkeypatch.syspath_prepend(tmp_path)
    settings.TASKS = {
        "default": {
            "BACKEND": "horsies_django.backend.HorsiesBackend",
            "QUEUES": [],
            "OPTIONS": {"serializer": "rich"},
        }
    }
    return importlib.import_module(name)


def test_tasks_run_and_their_other_hints_are_checked(module, drain):
    first = module.weigh.send(module.Parcel(3), 2)
    second = module.identity.send(5)

    drain()

    assert first.value(timeout=0) == 6
    assert second.value(timeout=0) == 5
    with pytest.raises(TypeError, match="argument 'times' is 'x'"):
        module.weigh.send(module.Parcel(3), times="x")
    with pytest.raises(TypeError, match="missing a required argument: 'parcel'"):
        module.weigh.send(times=2)


def test_workflows_are_checked_and_find_their_conditions(module, drain):
    call_command("check")
    handle = module.sort(missing=None).start()

    drain()

    assert handle.value(timeout=0) == 3
