"""The shell commands of the README and of each page of ``docs``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tests.conftest import ROOT

#: The text of each page, by its path in the checkout.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}

#: The languages of blocks with commands. In ``console`` a command follows a dollar, and its output follows it.
LANGUAGES = ("sh", "console")

BLOCK = re.compile(r"^( *)```(\w*|\{\w+\})\n(.*?)^\1```$", re.M | re.S)

#: An inline command. A span may go on in the next line. Two words, such as ``horsies_task show``, are only a name.
SPAN = re.compile(
    r"(?<!`)`((?:python )?manage\.py [^`]+|python -m [^`]+|pip install [^`]+|horsies_\w+(?: --| \w+ )[^`…]+)`"
)


@dataclass(frozen=True)
class Command:
    """A command of a page, in one line. An inline command may have been without its ``python manage.py``."""

    page: str
    line: int
    text: str
    #: The output that a ``console`` block shows, else None.
    output: str | None = None
    #: The line where its block begins; an inline command is a block of its own.
    block: int = 0

    @property
    def is_in_block(self) -> bool:
        """Whether it is not an inline command."""
        return self.block != self.line

    @property
    def plain(self) -> str:
        """The command without the comment that follows it."""
        return re.sub(r"\s+# .*$", "", self.text)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def commands_of(page: str) -> list[Command]:
    """Return the commands of a page from top to bottom."""
    text = PAGES[page]
    found = [command for match in BLOCK.finditer(text) for command in _in_block(page, match)]
    prose = BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in SPAN.finditer(prose):
        line = _line(prose, match.start())
        found.append(Command(page, line, _complete(match[1]), block=line))
    return sorted(found, key=lambda command: command.line)


def blocks_of(page: str) -> list[list[Command]]:
    """Return the commands of a page, those of one block together."""
    return [list(block) for _, block in groupby(commands_of(page), key=lambda command: command.block)]


def _complete(span: str) -> str:
    """Return an inline command as it is typed."""
    text = " ".join(span.replace(r"\|", "|").split())
    return re.sub(r"(?:^|(?<=\| ))(manage\.py (?=\w)|(?=horsies_))", "python manage.py ", text)


def _in_block(page: str, match: re.Match[str]) -> Iterator[Command]:
    language, body, first = match[2], match[3], _line(PAGES[page], match.start())
    if language == "sh":
        for number, line in enumerate(body.replace("\\\n", " ").splitlines(), first + 1):
            yield Command(page, number, line.strip(), block=first)
    elif language == "console":
        for part in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.M):
            yield Command(page, first + _line(body, part.start()), part[1], part[2], block=first)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def misplaced(text: str) -> list[str]:
    """Return the lines that are commands, but stand in a block of another language."""
    start = re.compile(r" *(\$ |(\S*/)?(python3?|pip|manage\.py|django-admin|docker|kubectl|systemctl|heroku) )")
    return [
        line
        for _, language, body in BLOCK.findall(text)
        if language not in LANGUAGES
        for line in body.splitlines()
        if start.match(line)
    ]
