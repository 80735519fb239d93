"""The demo's tasks and workflows: analyse all modules, add up, check the totals, wait for approval, publish."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings

from horsies_django import (
    SuccessCase,
    SuccessPolicy,
    TaskContext,
    TaskError,
    TaskResult,
    Workflow,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowMeta,
    task,
    wait_for_event,
)

from .analysis import STDLIB, Report, analyse, sources

logger = logging.getLogger(__name__)

#: The event that approves a report; its payload is the name of the user.
APPROVED = "approved"


@task
def modules() -> list[str]:
    """Return the paths of all modules."""
    return [str(path) for path in sources()]


@task(queue_name="modules", exception_mapper={SyntaxError: "DOES_NOT_PARSE"})
def report(path: str) -> dict[str, int]:
    """Analyse one module."""
    return asdict(analyse(Path(path)))


@task
def add_up(workflow_meta: WorkflowMeta, paths: Sequence[str] = ()) -> dict[str, Any]:
    """Combine all reports and list the failures. A map with a failed item has no value, so read its items instead."""
    results = WorkflowHandle[Any](workflow_meta.workflow_id).results()
    outcomes = [(path, results[f"reports[{index}]"]) for index, path in enumerate(paths)]
    reports = [(path, result.unwrap()) for path, result in outcomes if result.is_ok()]
    largest = sorted(reports, key=lambda entry: entry[1]["lines"], reverse=True)[:10]
    return {
        "totals": asdict(sum((Report(**counts) for _, counts in reports), Report())),
        "largest": [[path, counts] for path, counts in largest],
        "failed": {path: _error_text(result) for path, result in outcomes if not result.is_ok()},
    }


def _error_text(result: TaskResult[Any, TaskError[Any]]) -> str:
    return f"{result.err.error_code}: {result.err.message}"


@task
def count_plainly(paths: list[str]) -> list[Any]:
    """Return the totals of a plain loop, and the number of modules that it can't parse."""
    totals, failed = Report(), 0
    for path in paths:
        try:
            totals += analyse(Path(path))
        except (SyntaxError, ValueError):
            failed += 1
    return [asdict(totals), failed]


@task
def compare(totals: dict[str, int], failed: int, plain: list[Any]) -> TaskResult[bool, TaskError[Any]]:
    """Fail if the totals of the workflow differ from those of the plain loop."""
    if [totals, failed] == plain:
        return TaskResult(ok=True)
    message = f"The workflow counted {totals} and {failed} failures; a plain loop {plain[0]} and {plain[1]}."
    return TaskResult(err=TaskError(error_code="COUNTS_DIFFER", message=message))


@task
def answer(approval: TaskResult[str, TaskError[Any]]) -> str | None:
    """Return the name of the user who approved, or None on timeout."""
    return approval.ok if approval.is_ok() else None


@task
def publish(report: dict[str, Any], approved_by: str | None) -> dict[str, Any]:
    """Add the approval to the report."""
    return {**report, "approved_by": approved_by}


@task
def deliver(report: dict[str, Any]) -> str:
    """Write the report into the outbox directory.

    The directory is missing on purpose, so that the user can find the error, create the directory and retry the task.
    """
    file = Path(settings.OUTBOX) / "report.json"
    file.write_text(json.dumps(report, indent=2))
    return str(file)


@task(takes_context=True)
def write_report(context: TaskContext) -> dict[str, int]:
    """Write a line about each module, for a page that shows the lines as they come."""
    paths, totals = sources(), Report()
    context.write("  lines  documented  module\n")
    for number, path in enumerate(paths, 1):
        context.progress(number, len(paths), path.name)
        try:
            counts = analyse(path)
        except (SyntaxError, ValueError) as error:
            logger.warning("%s does not parse: %s", path.name, error)
        else:
            totals += counts
            context.write(_line(str(path.relative_to(STDLIB)), counts))
    context.write(_line("all", totals))
    logger.info("%d modules read", len(paths))
    return asdict(totals)


def _line(name: str, counts: Report) -> str:
    return f"{counts.lines:>7,}{counts.coverage:>10.0f} %  {name}\n"


class Check(WorkflowDefinition[bool]):
    """Compare the report with the totals of a plain loop."""

    class Meta:
        definition_key = "testproject.check"
        cases = ({"paths": [], "report": {"totals": {}, "failed": {}}},)

    @classmethod
    def build_with(cls, *, paths: list[str], report: dict[str, Any]) -> Workflow[Any]:
        plain = count_plainly.node(node_id="plain")(paths=paths)
        failed = len(report["failed"])
        same = compare.node(node_id="same")(totals=report["totals"], failed=failed, plain=plain.value)
        return Workflow("check", [plain, same], output=same)


class Inspection(WorkflowDefinition[dict[str, Any]]):
    """A task for each module, a report, a check of the report, and a limited time for approval."""

    class Meta:
        definition_key = "testproject.inspection"
        cases = ({"patience": 5.0},)

    @classmethod
    def build_with(cls, *, patience: float) -> Workflow[Any]:
        paths = modules.node()()
        reports = report.map(over=paths)
        total = add_up.node(waits_for=[reports], allow_failed_deps=True)(paths=paths.value)
        checked = Check.node()(paths=paths, report=total)
        approved = wait_for_event(APPROVED, timeout=patience, waits_for=[checked])
        answered = answer.node(allow_failed_deps=True)(approval=approved.result)
        published = publish.node(waits_for=[checked])(report=total.value, approved_by=answered.value)
        return Workflow(
            "inspection",
            {
                "modules": paths,
                "reports": reports,
                "total": total,
                "checked": checked,
                "approved": approved,
                "answered": answered,
                "published": published,
            },
            output=published,
            # Modules that do not parse, or a missing approval, do not fail the workflow.
            success_policy=SuccessPolicy([SuccessCase(required=[checked, published])]),
        )
