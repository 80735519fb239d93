"""Collects the errors of a workflow's definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..core.exceptions import InvalidWorkflow
from ..core.workflow_errors import DefinitionError, DefinitionErrorCode


@dataclass(slots=True)
class ErrorList:
    """The errors of one workflow, in the order in which they were found."""

    workflow: str
    found: list[DefinitionError] = field(default_factory=list)

    def add(self, code: DefinitionErrorCode, problem: str, node: str | None = None) -> None:
        """Add an error."""
        self.found.append(DefinitionError(code, self.workflow, node, problem))

    def raise_if_any(self) -> None:
        """Raise InvalidWorkflow with all errors, if there are any."""
        if self.found:
            raise InvalidWorkflow(self.found)

    def __iter__(self) -> Iterator[DefinitionError]:
        return iter(self.found)
