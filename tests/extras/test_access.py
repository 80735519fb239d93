"""Access to the endpoints of horsies_django.urls, and the answers of the health checks."""

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from tests.extras.monitoring import TOKEN, with_metrics

pytestmark = pytest.mark.django_db

PATHS = [reverse(f"horsies:{name}") for name in ("metrics", "live", "ready")]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def user():
    return User.objects.create_user("ann", is_staff=True)


def test_the_urls_have_the_documented_paths():
    assert PATHS == ["/horsies/metrics", "/horsies/health/live", "/horsies/health/ready"]


@pytest.mark.parametrize("path", PATHS)
def test_nobody_may_read_an_endpoint_by_default(client, path, settings):
    responses = [client.get(path), client.get(path, headers=bearer("")), client.get(path, headers=bearer("guess"))]

    assert {response.status_code for response in responses} == {401}
    assert all(response.headers["WWW-Authenticate"] == 'Bearer realm="horsies"' for response in responses)
    assert all(response.headers["Cache-Control"] == "no-store" for response in responses)


@pytest.mark.parametrize("path", PATHS)
def test_the_token_opens_every_endpoint_and_a_similar_one_none(client, path, settings):
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)

    assert client.get(path, headers=bearer(TOKEN)).status_code == 200
    assert client.get(path, headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
    for wrong in (TOKEN[:-1], TOKEN.upper(), f"{TOKEN}x", "ü"):
        assert client.get(path, headers=bearer(wrong)).status_code == 401
    assert client.get(path, headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401


def test_public_endpoints_need_nothing_and_open_no_other(client, settings):
    settings.TASKS = with_metrics(settings.TASKS, public=["health/live"])

    assert [client.get(path).status_code for path in PATHS] == [401, 200, 401]


@pytest.mark.parametrize("path", PATHS)
def test_staff_needs_the_permission_to_view_tasks(client, path, user):
    client.force_login(user)
    assert client.get(path).status_code == 403

    user.user_permissions.add(Permission.objects.get(codename="view_task"))
    assert client.get(path).status_code == 200

    user.is_staff = False
    user.save()
    assert client.get(path).status_code == 403

    user.is_active = False
    user.save()
    assert client.get(path).status_code in (401, 403)


@pytest.mark.parametrize("path", PATHS)
def test_only_get_and_head_are_allowed(client, path, settings):
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)

    head = client.head(path, headers=bearer(TOKEN))
    posted = client.post(path, headers=bearer(TOKEN))

    assert (head.status_code, head.content) == (200, b"")
    assert (posted.status_code, posted.headers["Allow"]) == (405, "GET, HEAD")


def test_a_site_that_requires_a_login_does_not_redirect_the_monitoring(client, settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)

    assert [client.get(path, headers=bearer(TOKEN)).status_code for path in PATHS] == [200, 200, 200]


def test_health_live_runs_no_query(client, settings):
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)

    with CaptureQueriesContext(connection) as captured:
        response = client.get("/horsies/health/live", headers=bearer(TOKEN))

    assert (response.content, len(captured)) == (b"ok\n", 0)


def test_health_ready_names_a_migration_that_is_missing(client, settings):
    settings.TASKS = with_metrics(settings.TASKS, public=["health/ready"])
    assert client.get("/horsies/health/ready").status_code == 200
    recorder = MigrationRecorder(connection)
    latest = recorder.migration_qs.filter(app="horsies_django").latest("name").name
    recorder.record_unapplied("horsies_django", latest)

    response = client.get("/horsies/health/ready")

    assert response.status_code == 503
    assert latest in response.content.decode()
    assert response.content.count(b"\n") == 1


@pytest.mark.django_db(transaction=True)
def test_health_ready_says_in_one_line_that_the_database_does_not_answer(client, settings, monkeypatch):
    settings.TASKS = with_metrics(settings.TASKS, public=["health/ready"])
    secret = "the-password"

    connection.close()
    monkeypatch.setitem(connection.settings_dict, "NAME", f"/nowhere/{secret}")
    monkeypatch.setitem(connection.settings_dict, "PASSWORD", secret)
    response = client.get("/horsies/health/ready")
    monkeypatch.undo()

    assert response.status_code == 503
    assert response.content == b"Database 'default' does not answer: OperationalError.\n"


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "path", "allowed"),
    [
        ({"token": "two words"}, "['metrics']['token']", "without spaces"),
        ({"token": 12345678}, "['metrics']['token']", "without spaces"),
        ({"public": ["health"]}, "['metrics']['public']", "'health/live'"),
        ({"public": "metrics"}, "['metrics']['public']", "'health/ready'"),
        ({"tokens": "x"}, "['metrics']['tokens']", "token, public"),
    ],
)
def test_a_wrong_option_is_a_check_error_that_shows_no_token(settings, options, path, allowed):
    settings.TASKS = with_metrics(settings.TASKS, **options)

    with pytest.raises(SystemCheckError) as raised:
        call_command("check")

    assert path in str(raised.value)
    assert allowed in str(raised.value)
    assert "two words" not in str(raised.value)
    assert "12345678" not in str(raised.value)
