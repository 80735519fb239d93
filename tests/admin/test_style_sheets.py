"""The style sheets of one page: each class has its rule in one of them."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from django.contrib.staticfiles import finders

pytestmark = [pytest.mark.django_db, pytest.mark.once]

#: Sheets whose rules others refine on purpose.
SHARED = {"admin.css", "unfold.css"}


def classes_of(sheet):
    """Return the classes that have a rule of their own in a style sheet."""
    with open(finders.find(f"horsies_django/{sheet}"), encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    selectors = (one.strip() for rule in re.findall(r"([^{}]+)\{", text) for one in rule.split(","))
    return {selector for selector in selectors if re.fullmatch(r"\.horsies-[\w-]+", selector)}


@pytest.mark.parametrize("page", ["overview", "errorgroup", "task", "task/names", "workflow", "queue"])
def test_no_two_style_sheets_of_a_page_style_the_same_class(admin_client, page):
    html = admin_client.get(f"/admin/horsies_django/{page}/").content.decode()
    sheets = set(re.findall(r"/static/horsies_django/([\w]+\.css)", html)) - SHARED
    assert sheets

    styled = defaultdict(set)
    for sheet in sheets:
        for name in classes_of(sheet):
            styled[name].add(sheet)
    assert {name: found for name, found in styled.items() if len(found) > 1} == {}
