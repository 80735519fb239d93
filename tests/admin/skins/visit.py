"""Open every page of the queue's admin and print each with its status.

test_skins runs it in a separate process, because a skin has to be installed before Django starts.
"""

from html.parser import HTMLParser

import django

django.setup()

from django.apps import apps  # noqa: E402
from django.contrib import admin  # noqa: E402
from django.contrib.auth import get_user_model  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import reverse  # noqa: E402

from horsies_django import TaskStatus, Workflow  # noqa: E402
from horsies_django.models import Overview, Task  # noqa: E402
from tests.about.jobs import touch  # noqa: E402
from tests.about.models import Order  # noqa: E402
from tests.jobs import tasks  # noqa: E402

MARKERS = ("horsies-buttons", "horsies-pager", "horsies-row-tasks", "unfold.css", "jazzmin.css")


def main() -> None:
    """Create some rows and visit their pages."""
    call_command("migrate", run_syncdb=True, verbosity=0)
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin"))
    for _ in range(60):
        tasks.noop.send()
    tasks.fail.send()
    Workflow("pair", [first := tasks.noop.node()(), tasks.noop.node(waits_for=[first])()]).start()
    call_command("horsies_worker", "--drain", "--processes", "1", "-v0")

    visit(client, reverse("admin:index"))
    for model in apps.get_app_config("horsies_django").get_models():
        if model in admin.site._registry:
            pages = f"admin:{model._meta.app_label}_{model._meta.model_name}"
            visit(client, reverse(f"{pages}_changelist"))
            if model is Overview:  # it has no pages of rows
                continue
            for row in model._default_manager.order_by("-pk")[:1]:
                visit(client, reverse(f"{pages}_change", args=[row.pk]))
    failed = Task.objects.get(status=TaskStatus.FAILED)
    visit(client, reverse("admin:horsies_django_task_change", args=[failed.pk]))
    visit(client, reverse("admin:horsies_django_task_do", args=[failed.pk, "retry"]))
    touch.about(order := Order.objects.create()).send(1)
    visit(client, reverse("admin:about_order_change", args=[order.pk]))


class Forms(HTMLParser):
    """Finds forms within forms, which browsers end too early."""

    depth = 0
    are_nested = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "form":
            self.depth += 1
            self.are_nested |= self.depth > 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "form"


def visit(client: Client, address: str) -> None:
    """Open a page and print its address, its status and the markers that it contains."""
    response = client.get(address)
    html = response.content.decode()
    forms = Forms()
    forms.feed(html)
    print(
        address,
        response.status_code,
        *(["nested-forms"] if forms.are_nested else []),
        *(marker for marker in MARKERS if marker in html),
    )


main()
