"""Every block of the README and of ``docs`` has a check: here, or in the test that is named here."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command

from horsies_django.backend import HorsiesBackend
from horsies_django.models import Queue, Worker
from tests.conftest import ROOT
from tests.docs.commands import BLOCK, LANGUAGES, PAGES
from tests.ops.inspector.factories import make

BACKEND = "horsies_django.backend.HorsiesBackend"

#: The languages whose blocks this file checks. ``py`` is Python that needs other packages, such as Celery.
PYTHON = ("python", "py")
PARSERS = {"json": json.loads, "yaml": yaml.safe_load}

#: The languages whose blocks another file checks, all of them.
ELSEWHERE = {
    **dict.fromkeys(LANGUAGES, "tests/docs/test_commands.py"),
    "postgresql": "tests/checks/test_roles.py",
    "{toctree}": ".ci/run",  # it builds the pages, and a warning is an error
}

#: Blocks of text, by page and first line: the file that tests what they show, or the reason why none does.
TEXTS = {
    ("docs/admin.md", "send_receipt state:failed args.order.id:42"): "tests/admin/test_task_search.py",
    ("docs/architecture.md", "CTE Scan on picked (rows=16)"): "tests/worker/test_cost.py",
    ("docs/deploying.md", "condition: shop.conditions.is_large: no condition"): "tests/ops/test_deploy_check.py",
    ("docs/first-week.md", "# /etc/shop/environment"): "tests/docs/test_first_week.py",
    ("docs/first-week.md", "*/5 * * * * set -a"): "tests/docs/test_first_week.py",
    ("docs/output.md", '<pre id="report"'): "tests/output/test_event_browser.py",
    ("docs/security.md", "user=ann via=horsies_task act=task.cancel"): "tests/core/test_operation_log.py",
    ("docs/tutorial.md", "worker ready …"): "tests/docs/test_tutorial.py",
    ("docs/upgrading.md", "CommandError: Database 'default' lacks"): "tests/models/test_check_migrated.py",
    ("docs/worker.md", "state                          tasks"): "tests/docs/test_blocks.py",
    ("docs/worker.md", "ok workers=1: 2 alive"): "tests/ops/test_health.py",
    ("docs/worker.md", "horsies_worker        supervisor"): "no test: a drawing of the processes",
}

#: What a page takes from the reader's project without an import, as one line of Python.
ASSUMED = {
    ("README.md", "python"): "INSTALLED_APPS: list[str] = []",
    ("docs/batches.md", "python"): "def links_in(url: str) -> list[str]: return [url]",
    ("docs/first-week.md", "python"): "INSTALLED_APPS: list[str] = []",
    ("docs/from-celery.md", "py"): "; ".join(
        [
            "from typing import Any",
            "INSTALLED_APPS: list[str]",
            "from pathlib import Path",
            *(f"{name}: Any" for name in ("AbortableTask", "Order", "Task", "add", "app", "chain", "chord", "double")),
            *(f"{name}: Any" for name in ("group", "inverse", "tell", "total")),
        ]
    ),
    ("docs/long-work.md", "python"): "from typing import Any; stripe: Any",
    ("docs/tutorial.md", "python"): "import typing; INSTALLED_APPS: list[str]; DATABASES: dict[str, typing.Any]",
}

#: Pages whose Python pyright and mypy check in their strict modes.
STRICT = {("docs/batches.md", "python"), ("docs/from-celery.md", "python")}

#: Pages whose blocks are the files of a project, in which another test runs them. Their types are not checked.
PROJECTS = {"docs/signals-and-migrations.md": "tests/docs/test_signals_and_migrations.py"}

#: The reader's modules that pages import, as stubs.
READER = Path(__file__).parent / "reader"


def blocks() -> list[tuple[str, int, str, str]]:
    """Return the page, the number of the first line, the language and the text of each block."""
    return [
        (page, text.count("\n", 0, match.start()) + 2, match[2], textwrap.dedent(match[3]))
        for page, text in PAGES.items()
        for match in BLOCK.finditer(text)
    ]


def test_every_block_is_checked():
    texts = [(page, code) for page, _, language, code in blocks() if language not in (*PYTHON, *PARSERS, *ELSEWHERE)]

    assert [
        (page, code) for page, code in texts if not any(page == of and code.startswith(start) for of, start in TEXTS)
    ] == []
    assert len(texts) == len(TEXTS)


def test_every_check_elsewhere_exists():
    files = [
        *ELSEWHERE.values(),
        *PROJECTS.values(),
        *(check for check in TEXTS.values() if not check.startswith("no test: ")),
    ]

    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_the_models_of_the_pages_are_those_that_the_index_links():
    stubs, models = [
        {
            (model.name, *field)
            for model in ast.parse(path.read_text()).body
            if isinstance(model, ast.ClassDef)
            for field in re.findall(r"^    (\w+)(?: =|:) models\.(\w+)", ast.unparse(model), re.M)
        }
        for path in (READER / "shop" / "models.pyi", ROOT / "docs" / "examples" / "shop" / "models.py")
    ]

    assert "](examples/shop/models.py)" in PAGES["docs/index.md"]
    assert stubs == models
    assert ("Order", "email", "EmailField") in stubs


@pytest.mark.django_db
def test_the_status_that_the_worker_page_shows_has_the_columns_and_the_lines_of_the_command(capsys):
    (shown,) = [code for page, _, _, code in blocks() if page == "docs/worker.md" and code.startswith("state ")]
    Worker.objects.create(id="web-1", hostname="node1", pid=1001)
    Queue.objects.named("emails").pause()
    make("completed")
    make("pending", limit_key="k", blocked=True, deferred=True)
    call_command("horsies_status")

    names, printed = names_in(shown), names_in(capsys.readouterr().out)
    assert len(names) == 5
    assert [shortened(*both) for both in zip(printed, names, strict=True)] == names


def names_in(report: str) -> list[list[str]]:
    """Return the heads of each table of a status, the states of the first, and the labels of the last lines."""
    *tables, last = [section.splitlines() for section in report.strip().split("\n\n")]
    heads = [re.split("  +", lines[0]) for lines in tables]
    return [*heads, [re.split("  +", line)[0] for line in tables[0]], [line.partition(":")[0] for line in last]]


def shortened(names: list[str], shown: list[str]) -> list[str]:
    """Return the names of which those that a page leaves out are an ellipsis, as it shows them."""
    if "…" not in shown:
        return names
    at = shown.index("…")
    return [*names[:at], "…", *(name for name in names[at:] if name in shown[at:])]


def test_every_block_of_data_can_be_read():
    for _, _, language, code in blocks():
        if language in PARSERS:
            PARSERS[language](code)


@pytest.mark.parametrize("name", ["TASKS", "RECOVERY"])
def test_every_block_of_settings_has_options_that_exist(name, monkeypatch):
    monkeypatch.setenv("METRICS_TOKEN", "a-token-of-the-page")
    found = [value for _, _, language, code in blocks() if language in PYTHON for value in assigned(name, code)]

    assert found
    for value in found:
        tasks = value if name == "TASKS" else {"default": {"BACKEND": BACKEND, "OPTIONS": {"recovery": value}}}
        for alias, settings in tasks.items():
            problems = HorsiesBackend(alias, settings).parsed.problems if settings["BACKEND"] == BACKEND else ()
            # These tests have no second database: test_the_queue_gets_a_database_of_its_own has one.
            assert [problem for problem in problems if not problem.path.endswith("database']")] == []


def assigned(name: str, code: str) -> list[Any]:
    """Return the values that a block assigns to a name."""
    return [
        eval(ast.unparse(statement.value), {"os": os})
        for statement in ast.parse(code).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name
    ]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Return a folder with a module for each page. Its lines have the same numbers as those of the page."""
    folder = tmp_path_factory.mktemp("types")
    for package in ("pages", "strict_pages"):
        (folder / package).mkdir()
    for (page, language), lines in modules().items():
        package = "strict_pages" if (page, language) in STRICT else "pages"
        name = re.sub(r"\W", "_", f"{page.removesuffix('.md')}_{language}")
        (folder / package / f"{name}.py").write_text("\n".join(lines))
    return folder


@pytest.mark.slow
@pytest.mark.once
def test_every_block_of_python_has_correct_types(packages):
    """Run mypy, which is strict with the pages of STRICT."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--package", "pages", "--package", "strict_pages"],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": f"{packages}{os.pathsep}{READER}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.skipif(not shutil.which("node"), reason="pyright runs on Node, which is not installed")
def test_canvas_and_batches_have_correct_types_for_pyright_too(packages):
    settings = {
        "include": ["strict_pages"],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnusedExpression": False,  # of a line that only shows what it gives
    }
    (packages / "pyrightconfig.json").write_text(json.dumps(settings))

    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--project", str(packages), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors" in done.stdout


def modules() -> dict[tuple[str, str], list[str]]:
    """Return the lines of Python of each page and language."""
    modules: dict[tuple[str, str], list[str]] = {}
    for page, first, language, code in blocks():
        if language in PYTHON and page not in PROJECTS:
            lines = modules.setdefault((page, language), [""] * PAGES[page].count("\n"))
            code = without_own_imports(code, "\n".join(lines))
            lines[0] = ASSUMED.get((page, language), "")
            lines[first - 1 : first - 1 + code.count("\n")] = code.splitlines()
    return modules


def without_own_imports(code: str, before: str) -> str:
    """Return a block without its imports from the reader's project of names that the page has defined before."""

    def kept(line: re.Match[str]) -> str:
        return "" if all(re.search(rf"^def {name}\(", before, re.M) for name in line[1].split(", ")) else line[0]

    return re.sub(r"^from (?:shop|orders)\.tasks import (.*)$", kept, code, flags=re.M)
