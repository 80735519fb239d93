"""Staff who may do this or that."""

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

from horsies_django.admin.actions import bulk_action


@pytest.fixture(autouse=True)
def _time_to_work(monkeypatch):
    """A request does to all that match what it can in one go: a machine that stands still ends none too early."""
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 600.0)


@pytest.fixture
def staff(client):
    """Log a staff member with these permissions in."""

    def log_in(*codenames):
        user = get_user_model().objects.create_user("staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        assert user.user_permissions.count() == len(codenames)
        client.force_login(user)
        return client

    return log_in
