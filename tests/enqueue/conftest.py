"""The two ways to get a result."""

import pytest
from asgiref.sync import async_to_sync

from horsies_django import TaskHandle

GETS = {"get": TaskHandle.get, "aget": async_to_sync(TaskHandle.aget)}


@pytest.fixture(params=GETS)
def get(request, transactional_db):
    """``get()`` or ``aget()``."""
    return GETS[request.param]
