"""The claim's SQL as golden files: the SQL that Django compiles from ``ClaimQuerySet`` is reviewed like code.

``UPDATE_GOLDEN=1`` rewrites them; so does ``tox -e golden``.
"""

import os
import re
import textwrap
from pathlib import Path

import pytest
from django.db import connection

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
    sql = re.sub(r'((?:"\w+"\.)?"\w+") = False', r"NOT \1", sql)
    sql = re.sub(r'((?:"\w+"\.)?"\w+") = True', r"\1", sql)
    # Each version numbers the aliases of expressions in its own way.
    return layout(re.sub(r' AS "\w+"', "", sql.replace("%%", "%")))


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
    compiled = compile_for(Task.objects.all(), WorkerInfo("a-worker", "a-host", 7), is_async=False)
    if connection.vendor == "postgresql":
        return {
            "of one queue": compiled._of_one,
            "of one queue, from the cursor on": compiled._after_cursor,
            "of several queues": compiled._of_several,
        }
    return {
        "store results": compiled._complete,
        "record attempts": compiled._record,
        "pick, of one queue": compiled._pick,
        "take": compiled._take,
    }


@pytest.mark.django_db(transaction=True)
def test_the_sql_of_the_claim_matches_the_golden_file():
    found = "\n".join(f"-- {name}\n{readable(statement)};\n" for name, statement in statements().items())

    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()
