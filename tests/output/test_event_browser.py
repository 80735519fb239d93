"""The events of tasks in a real browser."""

import pytest

from tests.admin.browser.conftest import chromium  # noqa: F401  # a fixture
from tests.conftest import wait_until
from tests.output import jobs
from tests.output.event_stream import GUNICORN, UVICORN
from tests.output.test_events import open_to

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

READ = """
window.source = new EventSource(arguments[0]);
window.got = [];
for (const name of ["output", "end"]) {
  source.addEventListener(name, (event) => got.push([event.lastEventId, JSON.parse(event.data)]));
}
"""


@pytest.fixture
def page(chromium):  # noqa: F811
    """Return a function that opens a page of a site and runs a script in it."""

    def run(address, script, *arguments):
        if not chromium.current_url.startswith(f"http://{address}/"):
            chromium.get(f"http://{address}/horsies/health/live")
        return chromium.execute_script(script, *arguments)

    yield run
    chromium.get("about:blank")


@pytest.mark.parametrize("command", [UVICORN, GUNICORN], ids=["uvicorn", "gunicorn"])
def test_a_browser_that_does_not_close_its_source_gets_everything_once_and_stops(
    serve, worker, tmp_path, page, command
):
    worker("--threads", "2")
    _, address = serve(*command)
    handle = jobs.writes_at_gates.send(str(tmp_path), 3)

    def got():
        return page(address, "return window.got")

    page(address, READ, open_to(handle))
    for number in range(3):
        (tmp_path / str(number)).touch()
        wait_until(lambda: len(got()) > number, what=lambda: str(got()))  # noqa: B023
    wait_until(lambda: page(address, "return source.readyState") == 2, what=lambda: str(got()))

    assert [(event_id, data.get("data", data)) for event_id, data in got()] == [
        ("1", "line 0\n"),
        ("2", "line 1\n"),
        ("3", "line 2\n"),
        ("end", {"status": "COMPLETED"}),
    ]
