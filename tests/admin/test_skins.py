"""Third-party skins of Django's admin, which replace templates."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.once


@pytest.mark.slow
@pytest.mark.parametrize("skin", ["unfold", "jazzmin"])
def test_every_page_opens_with_another_skin(skin, tmp_path, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/skin.sqlite3")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", f"tests.admin.skins.{skin}")

    visit = [sys.executable, "-m", "tests.admin.skins.visit"]
    done = subprocess.run(visit, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    pages = [line.split() for line in done.stdout.splitlines() if line.startswith("/admin/")]
    assert len(pages) > 5
    assert {status for _, status, *_ in pages} == {"200"}, done.stdout
    assert [url for url, _, *markers in pages if "horsies-buttons" in markers], done.stdout
    assert not [url for url, _, *markers in pages if "nested-forms" in markers], done.stdout
    assert [markers for _, _, *markers in pages if "horsies-row-tasks" in markers] == [
        ["horsies-row-tasks", f"{skin}.css"]
    ], done.stdout
    ours = [markers for url, _, *markers in pages if "/horsies_django/" in url]
    sheets = {sheet for markers in ours for sheet in markers if sheet.endswith(".css")}
    assert sheets == {f"{skin}.css"}, done.stdout
    assert all(f"{skin}.css" in markers for markers in ours), done.stdout
