"""Who may read the events of a task, and what one response holds."""

from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django import TaskHandle
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.output import jobs
from tests.output.event_stream import Event, parse

pytestmark = pytest.mark.django_db(transaction=True)

MISSING = UUID("00000000-0000-7000-8000-000000000000")

REPORT = {"done": 1, "total": 3, "message": "m"}


def address(task_id, token=None):
    path = reverse("horsies:task-events", args=[task_id])
    return path if token is None else f"{path}?token={token}"


def open_to(handle, **options):
    return address(handle.id, handle.stream_token(**options))


def events(response):
    assert response.status_code == 200, response.content
    return [(event.name, event.data.get("data"), event.id) for event in parse(response.content.decode())]


@pytest.fixture
def ended():
    """A task that has written two chunks and ended."""
    handle = jobs.writes.send(["a", {"b": 1}])
    drain()
    return handle


@pytest.fixture
def viewer(client):
    """Log in a user of the staff with the permission to view tasks."""
    user = User.objects.create_user("ann", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_task"))
    client.force_login(user)
    return user


# Who may read.


def test_the_token_of_a_task_opens_its_events(client, ended):
    assert events(client.get(open_to(ended))) == [
        ("output", "a", "1"),
        ("output", {"b": 1}, "2"),
        ("end", None, "end"),
    ]


def test_a_token_costs_no_query(ended):
    with CaptureQueriesContext(connection) as captured:
        assert ended.stream_token()

    assert not captured.captured_queries


def test_the_token_of_another_task_opens_nothing(client, ended):
    other = jobs.writes.send(["c"])

    assert client.get(address(ended.id, other.stream_token())).status_code == 403


@pytest.mark.parametrize("token", ["", "x", "a:b", "ü", "\0"])
def test_a_text_that_is_no_token_opens_nothing(client, ended, viewer, token):
    assert client.get(address(ended.id), {"token": token}).status_code == 403


def test_a_token_that_was_changed_opens_nothing(client, ended):
    content, signature = ended.stream_token().rsplit(":", 1)

    for token in (f"{content}:{signature[::-1]}", f"{content[:-2]}00:{signature}", content):
        assert client.get(address(ended.id, token)).status_code == 403


def test_a_token_of_another_secret_key_opens_nothing_unless_it_is_a_fallback(client, ended, settings):
    path = open_to(ended)
    old, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    assert client.get(path).status_code == 403

    settings.SECRET_KEY_FALLBACKS = [old]
    assert client.get(path).status_code == 200


def test_a_token_expires(client, ended):
    assert client.get(open_to(ended, max_age=1e-9)).status_code == 403


@pytest.mark.parametrize("max_age", [0, -1, True, "60", None, float("nan"), float("inf"), 315_360_001])
def test_a_bad_age_of_a_token_is_named(max_age):
    with pytest.raises(ValueError, match=r"max_age is .*; allowed: seconds above 0, at most 315360000\."):
        TaskHandle(MISSING).stream_token(max_age=max_age)


def test_a_token_of_a_backend_that_is_gone_finds_no_task(client, ended):
    assert client.get(open_to(TaskHandle(ended.id, backend="gone"))).status_code == 404


def test_a_request_without_a_token_needs_a_user(client, ended):
    response = client.get(address(ended.id))

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="horsies"'
    assert response.headers["Cache-Control"] == "no-store"


def test_a_user_needs_to_be_of_the_staff_and_to_have_the_permission(client, ended):
    user = User.objects.create_user("ann", is_staff=True)
    client.force_login(user)
    assert client.get(address(ended.id)).status_code == 403

    user.user_permissions.add(Permission.objects.get(codename="view_task"))
    assert len(events(client.get(address(ended.id)))) == 3

    user.is_staff = False
    user.save()
    assert client.get(address(ended.id)).status_code == 403


def test_who_may_not_read_learns_of_no_task(client, ended):
    handle = TaskHandle(MISSING)

    assert client.get(address(MISSING)).status_code == 401
    assert client.get(address(MISSING, ended.stream_token())).status_code == 403
    assert client.get(open_to(handle)).status_code == 404


def test_a_viewer_gets_the_output_masked_and_the_bearer_of_a_token_as_it_is(client, viewer, keep_logs):
    keep_logs()
    handle = jobs.writes_secrets.send()
    drain()
    masked = client.get(address(handle.id)).content.decode()
    whole = client.get(open_to(handle)).content.decode()

    assert "DE02" not in masked
    assert [event.name for event in parse(masked)] == ["output", "output", "output", "log", "end"]
    assert parse(masked)[2].data["data"]["bank"] == "of Django"
    assert [event.data.get("data") for event in parse(whole)][:3] == [
        "the IBAN is DE02",
        ["the IBAN is DE02"],
        {"iban": "DE02", "bank": "of Django", "password": "x"},
    ]


@pytest.mark.parametrize(("task", "shown"), [(jobs.reports_secrets, "*" * 20), (jobs.reports_at_gates, REPORT)])
def test_a_viewer_gets_progress_masked_as_in_the_admin(client, viewer, task, shown):
    handle = task.send("")
    Task.objects.filter(pk=handle.id).update(progress=REPORT)

    def reports(path):
        return [(event.name, event.data) for event in parse(client.get(path).content.decode())]

    assert reports(address(handle.id)) == [("progress", shown)]
    assert reports(open_to(handle)) == [("progress", REPORT)]


def test_a_site_that_requires_a_login_lets_a_token_in(client, ended, settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]

    assert len(events(client.get(open_to(ended)))) == 3


# What a response holds.


def test_a_reader_gets_what_follows_the_last_event_that_it_had(client, ended):
    path = open_to(ended)

    assert [event[2] for event in events(client.get(path, headers={"Last-Event-ID": "1"}))] == ["2", "end"]
    assert [event[2] for event in events(client.get(path, headers={"Last-Event-ID": "2"}))] == ["end"]
    assert [event[2] for event in events(client.get(path, headers={"Last-Event-ID": ""}))] == ["1", "2", "end"]


def test_a_reader_who_had_the_end_is_told_to_stop(client, ended):
    response = client.get(open_to(ended), headers={"Last-Event-ID": "end"})

    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("last_id", ["x", "-1", "1.5", str(2**31), "9" * 5_000])
def test_a_bad_last_event_id_is_named(client, ended, last_id):
    response = client.get(open_to(ended), headers={"Last-Event-ID": last_id})

    assert response.status_code == 400
    assert response.content.decode() == f"Last-Event-ID is {last_id!r}; allowed: the id of an event.\n"


@pytest.mark.slow
def test_all_of_a_long_output_is_in_one_response(client):
    handle = jobs.writes.send(list(range(2_500)))
    drain()

    got = events(client.get(open_to(handle)))

    assert [data for _, data, _ in got] == [*range(2_500), None]


def test_a_task_without_news_tells_when_to_come_back(client):
    handle = jobs.writes.send(["a"])

    response = client.get(open_to(handle))

    assert (response.status_code, response.content) == (200, b"retry: 2000\n\n")


def test_while_the_database_does_not_answer_a_browser_is_told_to_come_back(client, ended, monkeypatch, caplog):
    path = open_to(ended)

    connection.close()
    monkeypatch.setitem(connection.settings_dict, "NAME", "/nowhere/else")
    response = client.get(path)
    monkeypatch.undo()

    assert (response.status_code, response.content) == (200, b"retry: 2000\n\n")
    assert f"events end early task={ended.id} error=" in caplog.text
    assert path.partition("token=")[2] not in caplog.text


def test_only_get_and_head_are_allowed(client, ended):
    head, posted = client.head(open_to(ended)), client.post(open_to(ended))

    assert (head.status_code, head.headers["Content-Type"], head.content) == (200, "text/event-stream", b"")
    assert (posted.status_code, posted.headers["Allow"]) == (405, "GET, HEAD")


# Under ASGI, in this process.


def stream(async_client, path, **headers):
    """Return the response to an ASGI request and its content."""

    @async_to_sync  # with the connection of this thread
    async def read():
        response = await async_client.get(path, headers=headers)
        return response, b"".join([part async for part in response]).decode()

    return read()


@pytest.mark.slow
def test_a_stream_of_a_task_that_has_ended_has_all_and_ends(async_client):
    handle = jobs.writes.send(list(range(2_500)))
    drain()

    response, content = stream(async_client, open_to(handle))

    assert [event.data.get("data") for event in parse(content)] == [*range(2_500), None]
    assert parse(content)[-1] == Event("end", {"status": "COMPLETED"}, "end")
    assert response.streaming
    assert response.headers["X-Accel-Buffering"] == "no"
    assert response.headers["Cache-Control"] == "no-store"


def test_a_head_request_under_asgi_ends(async_client):
    handle = jobs.writes.send(["a"])

    response = async_to_sync(async_client.head)(open_to(handle))

    assert (response.status_code, response.streaming) == (200, False)


def test_a_stream_is_not_compressed(async_client, ended, settings):
    settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]

    _, content = stream(async_client, open_to(ended), **{"Accept-Encoding": "gzip"})

    assert len(parse(content)) == 3


def test_a_site_whose_requests_are_transactions_has_streams(async_client, ended):
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        _, content = stream(async_client, open_to(ended))
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False

    assert len(parse(content)) == 3


def test_a_task_of_which_the_web_process_does_not_know_is_masked_whole(client, viewer, ended):
    Task.objects.filter(pk=ended.id).update(task_name="of.another.release")

    assert "********************" in events(client.get(address(ended.id)))[0]
