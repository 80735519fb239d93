"""The workflows that mypy checks can also be built."""

import pytest

from tests.workflows import typed
from tests.workflows.conftest import blueprint_of


@pytest.mark.slow
def test_the_type_checked_workflows_can_be_built():
    assert len(typed.whole.nodes) == 8
    assert len(typed.nested.nodes) == 2
    assert blueprint_of(typed.whole).nodes[typed.whole.index(typed.summary)].values_from == {"pages": (0, 0)}
