"""An operator at the browser, without the browser."""

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission


@pytest.fixture
def browser(client):
    """Log a staff member with these permissions in."""

    def log_in(*codenames):
        user = get_user_model().objects.create_user("staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client.force_login(user)
        return client

    return log_in
