"""What tasks write and log, on their pages, in the download, and on the page of their error."""

import copy
import logging
import re
from html import unescape

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django.models import Task
from tests.admin.client import address, html_of, log_in, text_of
from tests.output import jobs

pytestmark = [pytest.mark.django_db, pytest.mark.once]

logger = logging.getLogger("shop.reports")


@pytest.fixture
def staff(client):
    return log_in(client, "view_task")


@pytest.fixture(autouse=True)
def _keep_logs(settings, caplog):
    caplog.set_level(logging.INFO, "shop.reports")
    tasks = copy.deepcopy(settings.TASKS)
    tasks["default"]["OPTIONS"]["attempt_log"] = {}
    settings.TASKS = tasks


def entries_of(html):
    """Return the texts of the headings and entries of the output, with ``T`` for times and ``D`` for days."""
    box = html.partition('id="horsies-output-text"')[2].partition("</section>")[0].partition("horsies-copied")[0]
    inner = re.findall(r"<(?:h3|div)\b[^>]*>(.*?)</(?:h3|div)>", box, re.DOTALL)
    texts = (unescape(re.sub("<[^>]*>", "", each)) for each in inner)
    return [re.sub(r"\d{4}-\d\d-\d\d", "D", re.sub(r"\d\d:\d\d:\d\d\.\d{3}", "T", text)) for text in texts]


def group_page(handle):
    fingerprint = Task.objects.get(pk=handle.id).fingerprint
    return reverse("admin:horsies_django_errorgroup_change", args=[fingerprint])


@pytest.mark.slow
def test_the_page_shows_log_and_output_in_their_order_and_escaped(staff, run_script):
    def body(context):
        for token in ("An ", "answer in", " <b>tokens</b>.\n"):
            context.write(token)
        logger.info("<i>%s</i>", "halfway")
        context.write({"none": None, "rows": [1, "<b>"]})
        context.write(None)
        context.write("the end")

    html = html_of(staff, run_script(body))

    assert entries_of(html) == [
        "Attempt 1 · D",
        "An answer in <b>tokens</b>.\n",
        "T INFO shop.reports <i>halfway</i>",
        '{\n  "none": null,\n  "rows": [\n    1,\n    "<b>"\n  ]\n}',
        "null",
        "the end",
    ]
    assert "<b>tokens" not in html
    assert "<i>" not in html
    assert "Only the end is shown." not in html


def test_attempts_are_set_apart_and_levels_are_marked(staff, run_script):
    def body(context):
        context.write(f"attempt {context.attempt}")
        if context.attempt == 1:
            logger.warning("no connection")
            raise ConnectionError

    html = html_of(staff, run_script(body, attempts=2))

    assert entries_of(html) == [
        "Attempt 1 · D", "attempt 1", "T WARNING shop.reports no connection", "Attempt 2 · D", "attempt 2",
    ]  # fmt: skip
    assert '<div data-level="WARNING">' in html


def test_what_is_sensitive_is_hidden_on_every_page(client, drain):
    handle = jobs.writes_secrets.send()
    drain()
    staff = log_in(client, "view_task")

    for text in (html_of(staff, handle), text_of(staff, handle, "output")):
        assert text.count("********************") >= 4
        assert "of Django" in text
        assert "DE02" not in text
        assert '"x"' not in text


@pytest.mark.slow
def test_a_task_that_has_not_begun_or_not_written_shows_nothing_and_costs_at_most_one_statement(staff, run_script):
    silent, waiting = run_script(lambda context: None), Task.objects.create(task_name="gone.task")

    def page(row):
        with CaptureQueriesContext(connection) as captured:
            html = html_of(staff, row)
        return html, [query["sql"] for query in captured if "horsies_task_output" in query["sql"]]

    assert "Log and output" not in page(waiting)[0]
    assert page(waiting)[1] == []
    assert "Log and output" not in page(silent)[0]
    assert len(page(silent)[1]) == 1


def test_the_page_of_64_kib_of_log_takes_one_statement_and_shows_all_of_it(staff, run_script):
    def body(context):
        for number in range(250):
            logger.info("line %d %s", number, "x" * 80)

    handle = run_script(body)

    with CaptureQueriesContext(connection) as captured:
        html = html_of(staff, handle)

    assert [f"line {number} " in html for number in (0, 249)] == [True, True]
    assert len([query for query in captured if "horsies_task_output" in query["sql"]]) == 1


def test_only_the_end_of_a_long_output_is_read_and_the_download_has_all_of_it(staff, run_script):
    def body(context):
        for number in range(100):
            context.write(f"line {number} {'x' * 9_000}\n")

    handle = run_script(body)

    html, text = html_of(staff, handle), text_of(staff, handle, "output")
    assert "Only the end is shown." in html
    assert address(handle, "download", "output") in html
    (_heading, shown) = entries_of(html)
    assert [line.split()[1] for line in shown.splitlines()] == [str(number) for number in range(92, 100)]
    assert len(html) < 150_000
    assert [line.split()[1] for line in text.splitlines()[1:]] == [str(number) for number in range(100)]


def test_a_last_text_that_is_too_long_is_only_in_the_download(staff, run_script):
    handle = run_script(lambda context: context.write("x" * 100_000))

    html = html_of(staff, handle)

    assert "It is too long for this page." in html
    assert len(html) < 50_000
    assert "x" * 100_000 in text_of(staff, handle, "output")


def test_the_download_of_the_output_needs_the_view_permission(client, run_script):
    handle = run_script(lambda context: context.write("x"))

    assert log_in(client).get(address(handle, "download", "output")).status_code == 403


@pytest.mark.slow
def test_the_page_of_an_error_shows_the_last_lines_before_the_failure(staff, run_script):
    def body(context):
        for number in range(30):
            context.write(f"line {number}\n")
        for number in range(9):
            logger.info("record %d", number)
        if context.attempt == 2:
            raise ValueError("no such row")
        raise TimeoutError

    handle = run_script(body, attempts=2)

    with CaptureQueriesContext(connection) as captured:
        html = staff.get(group_page(handle)).content.decode()

    lines = "\n".join(f"line {number}" for number in range(20, 30))
    assert entries_of(html) == [lines, *(f"T INFO shop.reports record {number}" for number in range(9))]
    assert html.index("The last lines before the failure") < html.index("Traceback")
    assert len([query for query in captured if "horsies_task_output" in query["sql"]]) == 1


def test_the_page_of_an_error_without_output_has_no_lines(staff, run_script):
    def body(context):
        raise ValueError("no such row")

    html = staff.get(group_page(run_script(body))).content.decode()

    assert "ValueError" in html
    assert "The last lines" not in html
