"""Every command of the README and of ``docs`` runs as written, in a fresh virtual environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.command_line import parse
from tests.docs.commands import PAGES, Command, blocks_of, commands_of, misplaced
from tests.docs.project import SCHEDULED, copy_checkout, make_project, own_database, write_rows
from tests.docs.terminal import Terminal, clean_environment, endless_name

MINUTES = (
    "it takes minutes: test_the_benchmarks_of_a_page_have_valid_flags, and tests/test_benchmarks.py runs a small one"
)

NO_WORKER = "exits with 1 where no worker runs"

OF_A_MACHINE = "it needs root and services of the machine: tried by hand, not by a test"

#: Commands that these tests do not run, each with the reason and with what checks it instead.
NOT_RUN = {
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[demo]' && .venv/bin/python manage.py demo": (
        "the gate, .ci/run, runs it as it stands in the README"
    ),
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m tests -q": (
        "the gate, .ci/run, runs it as it stands in the README"
    ),
    "python manage.py demo": "the gate runs it: see above; also tests/test_demo.py",
    "python -m benchmarks": MINUTES,
    "python -m benchmarks --quick": MINUTES,
    "python -m benchmarks --only horsies-django,huey-redis --measure drain,latency --rounds 7": MINUTES,
    "python -m benchmarks --measure load": MINUTES,
    "python -m benchmarks --measure drain --before HEAD~20": MINUTES,
    "python -m benchmarks --database-url postgresql://me@host/postgres": MINUTES,
    "python -m tests.faults": "it takes 50 minutes: tests/faults has the same faults with shorter times",
    "python -m tests.soak --minutes 30": "it takes half an hour: tests/soak/test_soak.py runs a short one",
    "python -m tests.imports": "it needs grimp, of the extra lint: the gate runs it",
    "python manage.py horsies_status --check workers=1 --check oldest=60s --check failed=5%/10m": (
        f"it {NO_WORKER}: tests/ops/test_health.py runs its checks"
    ),
    "python manage.py horsies_status --check workers=1 --check oldest=60s --check failed=5%/10m --check reaper=5m": (
        f"it {NO_WORKER}: tests/ops/test_health.py runs its checks"
    ),
    "python manage.py horsies_queue quiet --name shop-1.0.0": (
        f"it {NO_WORKER}: tests/management/test_queue_command.py runs it with one"
    ),
    'test -n "$(find /run/shop/worker-heartbeat -mmin -1)"': (
        f"it {NO_WORKER}: tests/test_deploying.py runs it with one"
    ),
    "python manage.py horsies_task output ID --follow": "it follows the task of this test, which waits for a day",
    "python manage.py db_worker --batch --queue-name '*'": "a command of django-tasks-db, not of this package",
    "python manage.py procrastinate worker": "a command of procrastinate, not of this package",
    "useradd --system --home-dir /srv/shop --shell /bin/bash shop": OF_A_MACHINE,
    "su postgres -c 'createuser --pwprompt shop'": OF_A_MACHINE,
    "su postgres -c 'createdb --owner shop shop'": OF_A_MACHINE,
    "python3 -m venv /srv/shop/.venv": OF_A_MACHINE,
    ". /srv/shop/.venv/bin/activate": OF_A_MACHINE,
    "pip download --no-deps --no-binary horsies-django horsies-django": "horsies-django is not on PyPI yet",
    "tar xf horsies_django-*.tar.gz": "the same; tests/release/test_wheel.py looks into the distribution",
    'python -m tests.private_names "django==6.2a1"': "that version does not exist yet, and it needs mypy",
}

#: These begin in the checkout; all others in the project.
IN_CHECKOUT = ("python -m ", "python3 -m venv ", ".venv/bin/")

#: Creates the virtual environment of all pages but the tutorial.
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -q -e ."

#: What stands for something else in an inline command.
PLACEHOLDERS = {"FINGERPRINT": "0123456789ab", "ID": SCHEDULED, "NAME": "reports", "QUEUE": "reports"}

#: What differs between two runs of a command.
MASKS = {
    r"(?<=\[y/N\] )y\n": "",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "ID",
    r"\b[0-9a-f]{12}\b": "FINGERPRINT",
    r"\b[\d.]+ (m?s|min|h) ago\b|\bnow\b": "WHEN",
    r"\b\d[\d,]*\b": "N",
}

#: A page with tests of its own, and the last line of a block with one.
TUTORIAL = "docs/tutorial.md"
OWN_DATABASE = "python manage.py migrate --database queue"

ALL = [command for page in PAGES for command in commands_of(page)]


def blocks_to_run(page: str) -> list[list[Command]]:
    """Return the blocks of a page without what is not run, and without inline commands of an earlier page."""
    first = {command.text: command for command in reversed(ALL)}
    blocks = (
        [
            command
            for command in block
            if command.plain not in (*NOT_RUN, INSTALL)
            if command.is_in_block or command == first[command.text]
        ]
        for block in blocks_of(page)
    )
    return [block for block in blocks if block and block[-1].text != OWN_DATABASE]


#: The pages with commands; by day only the first one.
EACH_PAGE = [
    pytest.param(page, marks=() if page == "README.md" else pytest.mark.nightly)
    for page in PAGES
    if page != TUTORIAL and blocks_to_run(page)
]


def test_commands_are_found_in_blocks_and_in_the_text():
    assert len(ALL) > 60
    assert len([command for command in ALL if not command.is_in_block]) > 20


@pytest.mark.parametrize("page", PAGES)
def test_a_block_with_commands_is_marked_as_one(page):
    assert misplaced(PAGES[page]) == []


def test_every_command_that_is_not_run_is_on_a_page():
    assert set(NOT_RUN) - {command.plain for command in ALL} == set()


def test_every_placeholder_is_on_a_page():
    words = {word for command in ALL if not command.is_in_block for word in command.text.split()}

    assert set(PLACEHOLDERS) <= words


@pytest.mark.parametrize("command", [command for command in NOT_RUN if command.startswith("python -m benchmarks")])
def test_the_benchmarks_of_a_page_have_valid_flags(command):
    parse(shlex.split(command)[3:])


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """The variables of a new terminal."""
    return clean_environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory, environment) -> Path:
    """A copy of the checkout, with the virtual environment that ``docs/examples.md`` creates there."""
    folder = copy_checkout(tmp_path_factory.mktemp("docs") / "checkout")
    (install,) = (command for command in commands_of("docs/examples.md") if command.text == INSTALL)
    with Terminal(folder, environment) as terminal:
        terminal.run(install.text)
    return folder


@pytest.fixture(scope="module")
def activated(environment, checkout) -> dict[str, str]:
    """The variables of a terminal in which that virtual environment is active."""
    return environment | {"PATH": f"{checkout / '.venv' / 'bin'}{os.pathsep}{environment['PATH']}"}


@pytest.fixture(scope="module")
def project(tmp_path_factory, activated) -> Path:
    """The project, with tables and rows; tests copy it."""
    return make_project(tmp_path_factory.mktemp("project") / "shop", activated)


@pytest.fixture
def new_project(project, tmp_path) -> Iterator[Callable[[], Path]]:
    """Copy the project."""
    numbers = iter(range(1000))
    return lambda: shutil.copytree(project, tmp_path / f"shop-{next(numbers)}")


@pytest.mark.slow
@pytest.mark.parametrize("page", EACH_PAGE)
def test_the_commands_of_a_page_run(page, checkout, activated, new_project):
    for block in blocks_to_run(page):
        folder = checkout if block[0].text.startswith(IN_CHECKOUT) else new_project()
        if any("manage.py migrate" in command.text for command in block):
            (folder / "db.sqlite3").unlink()
        with Terminal(folder, activated) as terminal:
            for command in block:
                run(command, terminal)


@pytest.mark.slow
def test_the_queue_gets_a_database_of_its_own(activated, new_project):
    (block,) = (block for block in blocks_of("docs/deploying.md") if block[-1].text == OWN_DATABASE)
    folder = new_project()
    with Terminal(folder, activated) as terminal, own_database(folder):
        terminal.run("pip install 'horsies-django[binary]'")
        for command in block:
            run(command, terminal)
        write_rows(terminal)
        assert "failed" in terminal.run("python manage.py horsies_task list --status failed")


def run(command: Command, terminal: Terminal) -> None:
    """Run a command; its output must have the lines that the page shows."""
    line = command.text
    if not command.is_in_block:
        line = " ".join(PLACEHOLDERS.get(word, word) for word in line.split(" "))
    print(f"{command.page}:{command.line}: {line}")
    if endless_name(line):
        with terminal.start(line):
            return
    output = terminal.run(line)
    if command.output is not None:
        shown = masked(command.output)
        assert [words for words in masked(output) if words in shown] == shown, output


def masked(output: str) -> list[str]:
    """Return the lines of an output, without ids, numbers, times, widths, and what was typed."""
    for pattern, mask in MASKS.items():
        output = re.sub(pattern, mask, output)
    return [" ".join(line.split()) for line in output.splitlines()]
