"""The examples of docs/workflows.md, run in order."""

import re

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.once

BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "workflows.md").read_text(), re.M | re.S)


@pytest.mark.slow
def test_every_example_of_the_page_runs():
    names = {"__name__": __name__}

    for block in BLOCKS:
        exec(block, names)

    assert names["Import"].build().node_ids == ("page", "words", "saved", "told")
    assert names["workflow"].name == "Import"
    assert len(BLOCKS) == 6
