"""Fixtures of the admin's tests."""

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

from horsies_django.admin.actions import bulk_action
from tests.steps.conftest import run_script, send_script  # noqa: F401  # fixtures


@pytest.fixture(autouse=True)
def _long_work_time(monkeypatch):
    """Let one request handle all matching rows, so that a slow machine does not cut it short."""
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 600.0)


@pytest.fixture
def staff(client):
    """Log in a staff user with given permissions."""

    def log_in(*codenames):
        user = get_user_model().objects.create_user("staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert user.user_permissions.count() == len(codenames)
        client.force_login(user)
        return client

    return log_in
