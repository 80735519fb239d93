"""The tutorial, followed from its first line to its last, in two terminals and a browser."""

from __future__ import annotations

import contextlib
import html
import re
import signal
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

import pytest

from tests.conftest import wait_until
from tests.docs.commands import BLOCK, PAGES, Command, blocks_of
from tests.docs.project import copy_checkout
from tests.docs.terminal import Program, Terminal, clean_environment

PAGE = "docs/tutorial.md"
SITE = "http://127.0.0.1:8000/admin"
TASKS = f"{SITE}/horsies_django/task/"

#: What precedes a block that is the content of a file.
FILE = re.compile(r"(Write|Add this at the end of) `([\w/]+\.py)`")


class Browser:
    """Reads pages of the site, and sends their forms."""

    def __init__(self) -> None:
        self.cookies = CookieJar()
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(self.cookies))

    def get(self, url: str) -> str:
        """Return a page."""
        with self._opener.open(url, timeout=30) as response:
            return str(response.read().decode())

    def post(self, url: str, **fields: str) -> str:
        """Send a form of a page, and return the page that follows."""
        (token,) = {cookie.value for cookie in self.cookies if cookie.name == "csrftoken"}
        data = urlencode(fields | {"csrfmiddlewaretoken": str(token)}).encode()
        with self._opener.open(url, data, timeout=30) as response:
            return str(response.read().decode())


@pytest.fixture
def environment(tmp_path):
    """The variables of a new terminal, in which pip knows this package from a copy of the checkout."""
    constraint = tmp_path / "constraint.txt"
    constraint.write_text(f"horsies-django @ {copy_checkout(tmp_path / 'checkout').as_uri()}\n")
    environment = clean_environment(tmp_path)
    return environment | {"PIP_CONSTRAINT": f"{environment.get('PIP_CONSTRAINT', '')} {constraint}".strip()}


@pytest.mark.slow
def test_the_tutorial_can_be_followed(tmp_path, environment):
    home = tmp_path / "home"
    home.mkdir()
    create, tables, send, serve, mend, result, test = blocks_of(PAGE)

    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(Terminal(home, environment)) for _ in range(2))
        enter(create, first)
        write_files(home / "shop")
        enter(tables, first)
        assert re.search(r"TaskHandle\('[0-9a-f-]{36}'\)", enter(send, first))

        site = stack.enter_context(started(serve, second))
        wait_until(lambda: re.search(expected_log(), site.output), 60, "the worker logs what the page shows")

        browser = Browser()
        log_in(browser)
        assert "Failed" in browser.get(TASKS)
        assert browser.get(first_task(browser)).count("FileNotFoundError") >= 2

        enter(mend, first)
        retry_all(browser)
        wait_until(lambda: "Completed" in browser.get(TASKS), 30, "the task is completed")

        assert enter(result, first).splitlines()[-1] == "3"
        enter(test, first)


def enter(block: list[Command], terminal: Terminal) -> str:
    """Run the commands of a block, and return their output."""
    return "".join(terminal.run(command.text) for command in block)


@contextlib.contextmanager
def started(block: list[Command], terminal: Terminal) -> Iterator[Program]:
    """Run the commands of a block, of which the last runs until Ctrl-C."""
    enter(block[:-1], terminal)
    with terminal.start(block[-1].text, signal.SIGINT) as program:
        yield program


def write_files(project: Path) -> None:
    """Write the Python blocks of the page into the files that it names."""
    text, end = PAGES[PAGE], 0
    for block in BLOCK.finditer(text):
        if block[2] == "python":
            ((verb, name),) = FILE.findall(text, end, block.start())
            path = project / name
            path.write_text(block[3] if verb == "Write" else path.read_text() + block[3])
        end = block.end()


def expected_log() -> str:
    """Return a pattern of the log that the page shows."""
    (log,) = (block[3] for block in BLOCK.finditer(PAGES[PAGE]) if block[2] == "text")
    pattern = re.escape(log.strip()).replace("…", ".*?")
    return "(?s)" + re.sub(r"\\\n", ".*?\n.*?", re.sub(r"duration=[\d.\\]+s", r"duration=\\S+", pattern))


def log_in(browser: Browser) -> None:
    """Log in with the user that the page creates."""
    login = f"{SITE}/login/?next=/admin/"
    browser.get(login)
    assert "Log out" in browser.post(login, username="admin", password="secret")


def first_task(browser: Browser) -> str:
    """Return the address of the first task of the list."""
    found = re.search(r'href="(/admin/horsies_django/task/[0-9a-f-]{36}/change/[^"]*)"', browser.get(TASKS))
    assert found
    return f"http://127.0.0.1:8000{html.unescape(found[1])}"


def retry_all(browser: Browser) -> None:
    """Tick all tasks of the list, choose *Retry selected tasks* and press *Go*."""
    page = browser.get(TASKS)
    ids = re.findall(r'name="_selected_action" value="([0-9a-f-]{36})"', page)
    (action,) = re.findall(r'<option value="(\w+)">Retry selected tasks</option>', page)
    assert len(ids) == 1
    browser.post(TASKS, action=action, _selected_action=ids[0], index="0")
