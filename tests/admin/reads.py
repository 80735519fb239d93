"""Opens pages of the admin, and prints what each has read from where, as a line of JSON.

A page is an address with ``{task}`` for the id of a task. ``POST`` before it cancels that task from the list.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client

from horsies_django.models import Task


def main(pages: list[str]) -> None:
    client = Client(raise_request_exception=False)
    user, _ = get_user_model().objects.get_or_create(username="admin", is_staff=True, is_superuser=True)
    client.force_login(user)
    task = Task.objects.order_by("-pk").values_list("pk", flat=True).first()
    for page in pages:
        verb, _, address = page.rpartition(" ")
        with ExitStack() as stack:
            seen = Counter[str]()
            for connection in connections.all():
                stack.enter_context(connection.execute_wrapper(counting(seen)))
            if verb == "POST":
                chosen = {"action": "cancel", ACTION_CHECKBOX_NAME: [str(task)], "confirmed": "1"}
                response: Any = client.post(address, chosen)
            else:
                response = client.get(address.format(task=task))
        note = response.content.decode().partition("Read from the ")[2].partition(".<")[0]
        print(json.dumps({"status": response.status_code, "note": note, **seen}))


def counting(seen: Counter[str]) -> Any:
    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen[context["connection"].alias] += "horsies_" in sql
        return execute(sql, params, many, context)

    return count
