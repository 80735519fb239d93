"""The list in which everything that is wrong with a workflow's definition is collected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..core.exceptions import InvalidWorkflow
from ..core.workflow_errors import Mistake, MistakeCode


@dataclass(slots=True)
class Mistakes:
    """The mistakes of one workflow, in the order in which they were found."""

    workflow: str
    found: list[Mistake] = field(default_factory=list)

    def add(self, code: MistakeCode, problem: str, node: str | None = None) -> None:
        """Note a mistake."""
        self.found.append(Mistake(code, self.workflow, node, problem))

    def raise_if_any(self) -> None:
        """Raise InvalidWorkflow with all of them."""
        if self.found:
            raise InvalidWorkflow(self.found)

    def __iter__(self) -> Iterator[Mistake]:
        return iter(self.found)
