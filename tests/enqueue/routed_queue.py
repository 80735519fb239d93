"""``python -m tests.enqueue.routed_queue``: migrate, send, run and test with a queue in a database of its own."""

import os
import unittest
from io import StringIO

import django


def tables(alias):
    from django.db import connections

    return {name for name in connections[alias].introspection.table_names() if name != "django_migrations"}


def main():
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.enqueue.routed_queue_settings"
    django.setup()
    from django.contrib.auth.models import Permission
    from django.core.management import call_command
    from django.test import TestCase
    from django.test.utils import setup_test_environment

    from horsies_django.models import Queue, Schedule, Task, Worker
    from horsies_django.testing import assert_enqueued, drain
    from tests.jobs import tasks
    from tests.jobs.models import Entry

    for alias in ("default", "queue"):
        call_command("migrate", database=alias, verbosity=0, run_syncdb=True)  # the tests' app has no migrations
    assert all(name.startswith("horsies_") for name in tables("queue")), tables("queue")
    assert tables("queue") >= {"horsies_tasks", "horsies_workflows", "horsies_schedules"}
    assert not any(name.startswith("horsies_") for name in tables("default"))
    assert Permission.objects.filter(codename="retry_task").exists()

    handle = tasks.write.send("a")
    queue = Queue.objects.create(name="emails")
    queue.paused = True
    queue.save()
    for model in (Task, Queue, Worker, Schedule):
        assert model.objects.db == "queue"
        assert model.objects.count() == model.objects.using("queue").count()
    assert Queue.objects.using("queue").get().paused
    assert Task.objects.get(pk=handle.id).attempts.db == "queue"
    output = StringIO()
    call_command("horsies_status", stdout=output)
    assert "emails" in output.getvalue()
    call_command("horsies_worker", "--drain", verbosity=0)
    assert handle.value(0) is None
    assert Entry.objects.using("default").count() == 1
    call_command("horsies_reaper", "--once", stdout=output)
    call_command("horsies_prune", "--older-than", "0s", stdout=output)
    assert Task.objects.count() == 0

    setup_test_environment()

    class Case(TestCase):
        databases = ("default", "queue")

        def test_drain(self):
            sent = tasks.write.send("b")
            assert_enqueued(tasks.write, args=["b"])
            assert drain().handles == [sent]

    done = unittest.TextTestRunner().run(Case("test_drain"))
    assert done.wasSuccessful()
    assert Task.objects.count() == 0
    print("all is well")


if __name__ == "__main__":
    main()
