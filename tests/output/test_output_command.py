"""``manage.py horsies_task output``, and what viewers see of a sensitive task."""

import json

import pytest
from django.core.management import CommandError, call_command

from horsies_django.core.mask import MASKED
from horsies_django.ops.inspector import tasks
from horsies_django.testing import drain
from tests.conftest import wait_until
from tests.output import jobs
from tests.output.test_attempt_log import bare_root

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def output(capsys):
    """Run the command; return its exit status, its output and its errors."""

    def run(*arguments):
        try:
            call_command("horsies_task", "output", *map(str, arguments))
        except CommandError as error:
            return error.returncode, capsys.readouterr().out, str(error)
        return 0, capsys.readouterr().out, ""

    return run


@pytest.mark.slow
def test_it_prints_texts_json_and_log_lines(output, keep_logs):
    keep_logs()
    handle, logged = jobs.writes.send(["a line\n", {"é": [1]}, "last"]), jobs.logs.send()
    with bare_root():
        drain()

    assert output(handle.id) == (0, 'a line\n{"é": [1]}\nlast\n', "")
    assert output(logged.id) == (0, "INFO shop.reports a info for you\n", "")
    assert output(handle.id, "--after", "2") == (0, "last\n", "")


def test_json_has_a_chunk_in_each_line(output):
    handle = jobs.writes.send(["a", [1]])
    drain()

    _, out, _ = output(handle.id, "--json")

    chunks = [json.loads(line) for line in out.splitlines()]
    assert [(chunk["sequence"], chunk["attempt"], chunk["kind"], chunk["data"]) for chunk in chunks] == [
        (1, 1, "output", "a"),
        (2, 1, "output", [1]),
    ]
    assert all(chunk["at"].endswith("Z") for chunk in chunks)


def test_control_characters_do_not_reach_the_terminal(output):
    handle = jobs.writes.send(["a\x1b[31mb\tc\nd"])
    drain()

    assert output(handle.id) == (0, "a\\u001b[31mb\tc\nd\n", "")


def test_a_missing_task_and_bad_values_are_named(output):
    missing = "01991f3e-7c52-7a01-b6c5-0d6b5a3f9e11"

    assert output(missing) == (1, "", f"{missing}: there is no such task")
    assert output("x")[0] == 2
    assert output(missing, "--after", "-1")[::2] == (
        2,
        "--after: '-1' is not allowed; allowed: a whole number from 1 on.",
    )


@pytest.mark.slow
def test_follow_prints_what_comes_until_the_task_has_ended(manage, worker, tmp_path):
    worker("-v0")
    handle = jobs.writes_at_gates.send(str(tmp_path), 2)
    (tmp_path / "0").touch()

    follower = manage("horsies_task", "output", str(handle.id), "--follow")
    wait_until(lambda: "line 0" in follower.output)
    (tmp_path / "1").touch()

    assert follower.wait() == 0
    assert follower.output == "line 0\nline 1\n"


def test_viewers_see_no_text_of_a_sensitive_task_and_no_sensitive_value(output, keep_logs):
    keep_logs()
    handle = jobs.writes_secrets.send()
    with bare_root():
        drain()

    _, out, _ = output(handle.id)
    chunks = tasks().output(handle.id)

    assert "DE02" not in out
    assert [chunk.data for chunk in chunks] == [
        MASKED,
        MASKED,
        {"iban": MASKED, "bank": "of Django", "password": MASKED},
        {"level": "WARNING", "logger": "shop.reports", "message": MASKED},
    ]
    assert handle.output()[0].data == "the IBAN is DE02"
