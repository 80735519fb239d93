"""What the tests of definitions share."""

from collections.abc import Callable
from typing import Any

import pytest

from horsies_django import InvalidWorkflow, Workflow
from horsies_django.core.workflow_errors import DefinitionError


def mistakes_of(build: Callable[..., Any], *args: Any, **kwargs: Any) -> list[DefinitionError]:
    """Return the mistakes with which something can't be built."""
    with pytest.raises(InvalidWorkflow) as caught:
        build(*args, **kwargs)
    return list(caught.value.mistakes)


def only(code: str, nodes: Any, **options: Any) -> DefinitionError:
    """Return the one mistake of a workflow, which has this code."""
    found = mistakes_of(Workflow, "import", nodes, **options)
    assert [str(mistake.code) for mistake in found] == [f"HRS-{code}"], "\n".join(map(str, found))
    return found[0]
