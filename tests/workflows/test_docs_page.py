"""The examples of docs/workflows.md, run in order."""

import re

import pytest

from horsies_django import task
from tests.conftest import ROOT
from tests.workflows import jobs

pytestmark = pytest.mark.once

BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "workflows.md").read_text(), re.M | re.S)


@task
def links(page: str) -> list[str]:
    return page.split()


@task
def tell() -> None:
    """Do nothing."""


def test_every_example_of_the_page_runs():
    names = {name: jobs.nothing.node()() for name in "abcde"} | {"links": links, "tell": tell, "__name__": __name__}

    for block in BLOCKS:
        exec(block, names)

    assert names["Import"].build().node_ids == ("page", "words", "saved", "told")
    assert names["workflow"].name == "Import"
    assert len(BLOCKS) == 6
