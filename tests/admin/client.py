"""Helpers that open admin pages as a staff user."""

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.messages import get_messages
from django.urls import reverse

from horsies_django.models import Task


def log_in(client, *codenames):
    """Log in a staff user with these permissions, and return the client."""
    user, _ = get_user_model().objects.get_or_create(username="staff", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client.force_login(user)
    return client


def address(row, page="change", *args):
    """Return the URL of a task's page; ``row`` is a row or a handle."""
    key = row.pk if isinstance(row, Task) else row.id
    return reverse(f"admin:horsies_django_task_{page}", args=[key, *args])


def html_of(client, row):
    """Return the HTML of a task's page."""
    response = client.get(address(row))
    assert response.status_code == 200
    return response.content.decode()


def text_of(client, row, part):
    """Return the downloaded text of one value of a task."""
    response = client.get(address(row, "download", part))
    assert response.status_code == 200
    return response.content.decode()


def messages_of(response):
    """Return the messages that a request has left for the user, as one text."""
    return " ".join(str(message) for message in get_messages(response.wsgi_request))
