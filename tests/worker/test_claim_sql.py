"""The claim's SQL as golden files: the SQL that Django compiles from ``ClaimQuerySet`` is reviewed like code.

``UPDATE_GOLDEN=1`` rewrites them; so does ``tox -e golden``.
"""

import os
import re
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest
from django.db import connection, transaction

from horsies_django.db.statements import Statement
from horsies_django.models import Task
from horsies_django.models.claim.complete_and_claim import compile_for
from horsies_django.models.claims import WorkerInfo

GOLDEN = Path(__file__).parent / "golden" / f"claim_{connection.vendor}.sql"

#: A line begins before each of these, unless it is inside the brackets of a function.
WORDS = re.compile(
    r"(?:SELECT|FROM|WHERE|AND|OR|ORDER BY|LIMIT|FOR NO KEY|SET|RETURNING|ON CONFLICT|CROSS JOIN|INSERT INTO|"
    r"(?:recorded|picked|taken) (?:\([^()]*\) )?AS)\b"
)


def readable(statement: Statement) -> str:
    """Return the SQL in lines, with parameter names in place of bound values."""
    first, *rest = statement.sql.split("%s")
    names = [getattr(param, "name", None) for param in statement.params]
    texts = [
        f":{name}" if name else "NULL" if param is None else repr(param)
        for name, param in zip(names, statement.params, strict=True)
    ]
    sql = first + "".join(text + after for text, after in zip(texts, rest, strict=True))
    # Django 6.1 compares booleans on SQLite: NOT "deferred" is "deferred" = False there.
    sql = re.sub(r'("\w+"\."\w+") = False', r"NOT \1", sql)
    sql = re.sub(r'("\w+"\."\w+") = True', r"\1", sql)
    return layout(renumbered(sql.replace("%%", "%")))


def renumbered(sql: str) -> str:
    """Number the aliases of expressions in their order: Django 5.2.0 numbers some that are not selected."""
    aliases: defaultdict[str, list[str]] = defaultdict(list)
    for alias, stem in re.findall(r'"(([a-z]+)\d+)"', sql):
        if alias not in aliases[stem]:
            aliases[stem].append(alias)
    numbers = {alias: f"{stem}{number}" for stem, found in aliases.items() for number, alias in enumerate(found, 1)}
    return re.sub(r'"([a-z]+\d+)"', lambda match: f'"{numbers[match[1]]}"', sql)


def layout(sql: str) -> str:
    """Break the SQL before its keywords and indent it by its brackets; wrap long lines."""
    lines, line = list[str](), ""
    for piece in re.split(r"([() ])", sql):
        is_in_function = line.count("(") > line.count(")") and re.search(r"\b[A-Za-z_]+\([^()]*$", line)
        rest = sql[sum(map(len, lines)) + len(line) :]
        if line.strip() and not is_in_function and WORDS.match(rest):
            lines.append(line)
            line = ""
        line += piece
    lines.append(line)
    depth, found = 0, []
    for one in lines:
        found += textwrap.wrap(
            one.strip(),
            118,
            initial_indent="  " * depth,
            subsequent_indent="  " * depth + "    ",
            break_on_hyphens=False,
        )
        depth += one.count("(") - one.count(")")
    return "\n".join(found)


def statements() -> dict[str, Statement]:
    with transaction.atomic():  # outside a transaction Django writes no FOR UPDATE
        compiled = compile_for(Task.objects.all(), WorkerInfo("a-worker", "a-host", 7), is_async=False)
        if connection.vendor == "postgresql":
            return {
                "of one queue": compiled._one._first,
                "of one queue, from the mark on": compiled._one._after_cursor,
                "of several queues": compiled._several._first,
                "of several queues, a few of each at most": compiled._capped._first,
            }
        return {
            "store results": compiled._complete,
            "record attempts": compiled._record,
            "pick, of one queue": compiled._pick,
            "first of one of several queues": compiled._firsts,
            "pick, among the first of several queues": compiled._among,
            "take": compiled._take,
        }


@pytest.mark.django_db(transaction=True)
def test_the_sql_of_the_claim_matches_the_golden_file():
    found = "\n".join(f"-- {name}\n{readable(statement)};\n" for name, statement in statements().items())

    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()
