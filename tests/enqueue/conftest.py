"""The two ways to get a result."""

import pytest
from asgiref.sync import async_to_sync
from django.db import connection

from horsies_django import TaskHandle

GETS = {"get": TaskHandle.get, "aget": async_to_sync(TaskHandle.aget)}


@pytest.fixture(params=GETS)
def get(request, transactional_db):
    """``get()`` or ``aget()``."""
    return GETS[request.param]


@pytest.fixture
def refusing_13(transactional_db):
    """Make the database refuse one call."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite can't add a constraint to a table")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE horsies_tasks ADD CONSTRAINT refuses CHECK (kwargs <> '{\"a\": 13}') NOT VALID")
        yield
        cursor.execute("ALTER TABLE horsies_tasks DROP CONSTRAINT refuses")
