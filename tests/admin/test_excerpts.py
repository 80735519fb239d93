"""The arguments in the list of tasks: one short line, masked, with only the size of large values."""

import random
import re
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.models import Task
from horsies_django.ops.payload_view.excerpt import MAX_LENGTH
from tests.admin import page_jobs as jobs
from tests.admin.client import log_in

pytestmark = pytest.mark.django_db

LIST = "/admin/horsies_django/task/"
STARS = "********************"
ECHO = "tests.jobs.tasks.echo"


@pytest.fixture
def staff(client):
    return log_in(client, "view_task")


def excerpts(client):
    """Return the text of each row's cell, newest first."""
    html = client.get(LIST).content.decode()
    return [re.sub("<.*?>", "", unescape(cell)) for cell in re.findall(r'"field-shown_call">(.*?)</td>', html, re.S)]


def large():
    """Return two megabytes that hardly compress."""
    return random.Random(7).randbytes(1_000_000).hex()


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ([], {}, "-"),
        (["ann", 12.5, None, True], {}, '"ann", 12.5, null, true'),
        ([], {"to": ["a", {"b": []}], "lang": "de"}, 'to=["a", {"b": []}], lang="de"'),
        (["two\nlines"], {"x": "[\n { "}, r'"two\nlines", x="[\n { "'),
        (["x" * 500], {"y": 1}, f'"{"x" * (MAX_LENGTH - 2)}…'),
        ([[[[[[[[["deep"]]]]]]]], 2], {}, '[[[[[[[["deep"]]]]]]]], 2'),
    ],
)
def test_the_list_shows_arguments_on_one_short_line(staff, args, kwargs, shown):
    Task.objects.create(task_name=ECHO, args=args, kwargs=kwargs)

    assert excerpts(staff) == [shown]
    assert len(shown) <= MAX_LENGTH


@pytest.mark.parametrize(
    ("send", "shown"),
    [
        (lambda: jobs.log_in.send("ann", "geheim"), f'"ann", "{STARS}"'),
        (lambda: jobs.log_in.send("ann", password="geheim"), f'"ann", password="{STARS}"'),
        (lambda: jobs.pay.send({"n": 1, "iban": "geheim"}), f'{{"n": 1, "iban": "{STARS}"}}'),
        (lambda: jobs.send_reminder.send("geheim@x.y", note="plain"), f'"{STARS}", note="plain"'),
        (lambda: jobs.with_failing_hook.send("geheim"), f'"{STARS}"'),
        (lambda: Task.objects.create(task_name=ECHO, kwargs={"token": "geheim"}), f'token="{STARS}"'),
    ],
)
def test_the_list_masks_the_values_that_the_task_page_masks(staff, send, shown):
    send()

    assert excerpts(staff) == [shown]


def test_html_in_values_is_escaped(staff):
    bad = "<script>alert(1)</script>"
    Task.objects.create(task_name=ECHO, args=[bad], kwargs={bad: bad})

    html = staff.get(LIST).content.decode()

    assert bad not in html
    assert "&lt;script&gt;" in html


def test_damaged_arguments_without_names_are_listed_masked(staff):
    for args, kwargs in (({"a": 1}, [1]), (3, "text"), ("text", None)):
        Task.objects.create(task_name=ECHO, args=args, kwargs=kwargs or {})

    stars = '"********************"'
    assert excerpts(staff) == [stars, f"{stars}, {stars}", f'{{"a": 1}}, {stars}']


@pytest.mark.slow
def test_a_large_value_is_not_loaded_and_shows_its_size(staff):
    Task.objects.create(task_name=ECHO, args=[large()], kwargs={"small": 1})

    (row,) = staff.get(LIST).context["cl"].result_list

    assert row.args_text is None
    assert row.kwargs_text
    assert {"args", "kwargs", "result"} <= row.get_deferred_fields()
    assert re.fullmatch(r"\(1\.\d\sMB\), small=1|\(1\.9\sMB\), small=1", excerpts(staff)[0])


@pytest.mark.slow
def test_a_full_page_takes_no_more_queries_than_a_page_of_one_task(staff):
    counts = []
    for count in (1, 60):
        Task.objects.bulk_create([Task(task_name=ECHO, args=[1], kwargs={"a": 1}) for _ in range(count)])
        with CaptureQueriesContext(connection) as captured:
            assert set(excerpts(staff)) == {"1, a=1"}
        counts.append(len(captured))

    assert counts[1] <= counts[0] <= 15  # a page that is not full searches further


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "shown"),
    [
        ("pay", [], {"x": 2, "iban": "DE", "amount": 1}, f'amount=1, iban="{STARS}", x=2'),
        ("pay", [1], {"x": 2, "iban": "DE"}, f'1, iban="{STARS}", x=2'),
        ("send_reminder", [], {"note": "n", "recipient": "r"}, 'recipient="r", note="n"'),
        ("in_context", [], {"code": 1, "context": 2}, f'code="{STARS}", context=2'),
    ],
)
def test_arguments_are_in_the_order_of_the_parameters(staff, name, args, kwargs, shown):
    Task.objects.create(task_name=f"{jobs.__name__}.{name}", args=args, kwargs=kwargs)

    assert excerpts(staff) == [shown]
