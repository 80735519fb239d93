"""``python -m tests.admin.other_database``: use the admin while the queue's tables are in another database."""

import os

import django


def main():
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.admin.other_database_settings"
    django.setup()
    from django.conf import settings
    from django.contrib.admin.models import LogEntry
    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from django.test import Client
    from django.urls import reverse

    from horsies_django.models import Queue, Schedule, Task, Worker
    from tests.admin.pages import pages_of
    from tests.jobs import tasks

    settings.ALLOWED_HOSTS = ["testserver"]
    for alias in ("default", "queue"):
        call_command("migrate", database=alias, verbosity=0)
    handle = tasks.noop.send()
    workers = Worker.objects.using("queue")
    workers.register("w-1", "", "host", 1)
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("operator"))
    for address in pages_of("admin", handle.id, "w-1"):
        assert client.get(address).status_code == 200, address

    client.post(reverse("admin:horsies_django_task_do", args=[handle.id, "cancel"]))
    client.post(reverse("admin:horsies_django_queue_do", args=["~emails", "pause"]))
    client.post(reverse("admin:horsies_django_queue_changelist"), {"action": "pause", "_selected_action": ["~default"]})
    client.post(reverse("admin:horsies_django_queue_change", args=["~reports"]), {"max_concurrency": "3"})
    client.post(reverse("admin:horsies_django_queue_add"), {"name": "new"})
    client.post(reverse("admin:horsies_django_worker_do", args=["w-1", "stop"]), {"confirmed": "1"})

    form = {"name": "sweep", "task_name": tasks.noop.module_path, "timing": "every:300", "timezone": "UTC"}
    form |= {
        "catch_up": "latest",
        "max_catch_up_runs": "9",
        "overlap": "allow",
        "jitter": "0",
        "backend": "default",
        "enabled": "on",
    }
    client.post(reverse("admin:horsies_django_schedule_add"), form)
    schedule = Schedule.objects.using("queue").get()
    for page in ("change", "preview"):
        address = reverse(f"admin:horsies_django_schedule_{page}", args=[schedule.pk])
        assert client.get(address, {"timing": "every:60"}).status_code == 200
    client.post(reverse("admin:horsies_django_schedule_change", args=[schedule.pk]), form | {"timing": "every:60"})
    client.post(reverse("admin:horsies_django_schedule_do", args=[schedule.pk, "disable"]))

    schedule.refresh_from_db()
    assert (schedule.timing, schedule.enabled) == ("every:60", False)
    assert Task.objects.using("queue").get().status == "CANCELLED"
    queues = Queue.objects.using("queue").order_by("name").values_list("name", "paused", "max_concurrency")
    assert list(queues) == [
        ("default", True, None),
        ("emails", True, None),
        ("new", False, None),
        ("reports", False, 3),
    ]
    events = reverse("horsies:task-events", args=[handle.id])
    for reader, address in ((client, events), (Client(), f"{events}?token={handle.stream_token()}")):
        assert b'{"status":"CANCELLED"}' in reader.get(address).content
    assert workers.get().stop_requested_at is not None
    assert LogEntry.objects.count() == 9
    print("all is well")


if __name__ == "__main__":
    main()
