"""Webhooks that real requests send to ``runserver``."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest
from django.db import connection
from django.test import Client

from horsies_django.inbox import github_signature, hmac_signature, inbox, stripe_signature
from horsies_django.models import Task
from horsies_django.testing import drain
from tests.admin.browser.screenshots import answers, free_port
from tests.conftest import wait_until
from tests.inbox.jobs import on_event, takes_nothing
from tests.inbox.urls import SECRET
from tests.jobs.entries import entries
from tests.steps.test_batches_killed import kill_a_runner

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["client", pytest.param("runserver", marks=pytest.mark.slow)])
def post(request):
    """Return a function that POSTs a body to the site, and returns the status: with Django's client, or for real."""
    return request.getfixturevalue(f"post_to_{request.param}")


@pytest.fixture
def post_to_client(settings, transactional_db):
    settings.ROOT_URLCONF = "tests.inbox.urls"
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)

    def send(path, body, headers=None, method="POST"):
        return client.generic(method, path, body or "", "application/json", headers=headers).status_code

    return send


@pytest.fixture
def post_to_runserver(manage):
    port = free_port()
    settings = {"DJANGO_SETTINGS_MODULE": "tests.inbox.settings"}
    manage("runserver", "--noreload", f"127.0.0.1:{port}", **settings)
    wait_until(lambda: answers(port))

    def send(path, body, headers=None, method="POST"):
        client = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            client.request(method, path, body, headers or {})
            return client.getresponse().status
        finally:
            client.close()

    return send


def event(number, **more):
    return json.dumps({"id": f"evt_{number}", **more})


def signed(body, prefix="", secret=SECRET):
    return prefix + hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()


def stripe(body, at, secret=SECRET):
    return {"Stripe-Signature": f"t={at},v1=00ff,v1={signed(f'{at}.{body}', secret=secret)}"}


@pytest.mark.slow
def test_an_event_is_one_task_however_often_it_comes(post):
    assert [post("/open/", event(1)) for _ in range(3)] == [200] * 3
    assert post("/open/", event(1, again=True)) == 200
    assert post("/open/", event(2)) == 200

    drain()

    assert entries() == [event(1), event(2)]
    assert post("/open/", event(1)) == 200  # also once it has ended
    assert Task.objects.count() == 2


def test_a_key_is_new_when_its_period_is_over(post):
    post("/open/", event(1))
    drain()
    Task.objects.update(unique_expires_at="2020-01-01T00:00:00Z")

    assert post("/open/", event(1)) == 200

    assert Task.objects.count() == 2


def test_the_task_gets_the_body_and_if_it_asks_for_them_the_headers(post):
    headers = {"X-GitHub-Delivery": "1", "X-GitHub-Event": "push", "Authorization": "Bearer x", "Cookie": "a=b"}

    assert post("/details/", "é".encode(), headers) == 200
    drain()

    size, is_base64, stored = Task.objects.get().result["ok"]
    assert (size, is_base64) == (2, False)
    assert stored["x-github-event"] == "push"
    assert not {"authorization", "cookie"} & stored.keys()


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a\0b"], ids=["no UTF-8", "NUL"])
def test_a_body_that_is_no_text_comes_as_base64(post, body):
    assert post("/details/", body, {"X-GitHub-Delivery": "1"}) == 200

    drain()

    assert Task.objects.get().result["ok"][:2] == [len(body), True]


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        ("/hmac/", lambda body: {"X-Signature": signed(body)}, lambda body: {"X-Signature": signed(body, secret="no")}),
        (
            "/github/",
            lambda body: {"X-Hub-Signature-256": signed(body, "sha256="), "X-GitHub-Delivery": "1"},
            lambda body: {"X-Hub-Signature-256": signed(body), "X-GitHub-Delivery": "1"},
        ),
        ("/stripe/", lambda body: stripe(body, int(time.time())), lambda body: stripe(body, int(time.time()), "no")),
        ("/stripe/", lambda body: stripe(body, int(time.time()) - 200), lambda body: stripe(body, 1_600_000_000)),
        ("/stripe/", lambda body: stripe(body, int(time.time())), lambda body: {"Stripe-Signature": "t=x,v1=é"}),
    ],
    ids=["HMAC", "GitHub", "Stripe", "Stripe's time", "Stripe's form"],
)
def test_only_the_sender_s_signature_is_taken(post, path, good, bad):
    body = event(1)

    assert post(path, body, bad(body)) == 400
    assert post(path, body) == 400
    assert post(path, event(2), good(body)) == 400
    assert not Task.objects.exists()
    assert post(path, body, good(body)) == 200
    assert Task.objects.count() == 1


@pytest.mark.parametrize(
    "body", ["", "{", "[]", '{"id": ""}', "{}"], ids=["empty", "no JSON", "list", "empty key", "none"]
)
def test_a_request_without_a_key_is_refused(post, body):
    assert post("/open/", body) == 400

    assert not Task.objects.exists()


def test_a_large_body_and_other_methods_are_refused(post):
    assert post("/small/", event(1, filler="x" * 100)) == 413
    assert post("/open/", event(1, filler="x" * 1_048_576)) == 413
    assert post("/open/", event(1, filler="x" * 3_000_000)) == 413
    assert post("/open/", None, method="GET") == 405
    assert not Task.objects.exists()
    assert post("/open/", event(1, filler="x" * 1_000_000)) == 200


def test_while_the_database_is_away_the_sender_is_told_to_come_back(post):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE horsies_tasks RENAME TO away")
    try:
        assert post("/open/", event(1)) == 503
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE away RENAME TO horsies_tasks")

    assert post("/open/", event(1)) == 200


@pytest.mark.sqlite
@pytest.mark.slow
def test_an_event_that_comes_twenty_times_has_one_effect_although_runners_are_killed(post_to_runserver, worker):
    worker("-v0", "--processes", "2", runners=2)
    killed: set[int] = set()

    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(post_to_runserver, "/open/", event(number)) for number in [*range(20)] * 20]
        while not all(answer.done() for answer in answers):
            kill_a_runner(Task.objects.all(), killed)
            time.sleep(random.uniform(0.0, 0.2))
    wait_until(lambda: Task.objects.completed().count() == 20, 120)

    assert Counter(answer.result() for answer in answers) == {200: 400}
    assert Counter(entries()) == {event(number): 1 for number in range(20)}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_bytes": 0}, ValueError, "max_bytes is 0; allowed: 1 to DATA_UPLOAD_MAX_MEMORY_SIZE, which is 2621440"),
        ({"max_bytes": 3_000_000}, ValueError, "max_bytes is 3000000; allowed: 1 to"),
        ({"period": "soon"}, ValueError, "period is 'soon'; allowed: seconds above 0"),
    ],
)
def test_a_bad_option_is_named(options, error, message):
    with pytest.raises(error, match=message):
        inbox(on_event, key=str, **options)


def test_a_task_that_takes_no_body_is_refused():
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'body'"):
        inbox(takes_nothing, key=str)


@pytest.mark.parametrize(
    "make", [github_signature, stripe_signature, lambda secret: hmac_signature(secret, header="X")]
)
def test_an_empty_secret_is_refused(make):
    with pytest.raises(ValueError, match="The secret is empty"):
        make("")
