import sys
from datetime import timedelta

import django
from django.conf import settings


def main(file):
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "horsies_django", "tests.reaper.retention.referring"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": file}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TASKS={"default": {"BACKEND": "horsies_django.backend.HorsiesBackend"}},
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command
    from django.utils import timezone

    from horsies_django.models import Task
    from tests.reaper.retention.referring.models import Answer, Remark

    call_command("migrate", verbosity=0, run_syncdb=True)
    now = timezone.now()
    for name, kept_until in (("deleted", now - timedelta(1)), ("kept", now + timedelta(1))):
        times = {"enqueued_at": now, "completed_at": now, "kept_until": kept_until}
        task = Task.objects.create(task_name=name, status="COMPLETED", **times)
        Answer.objects.create(remark=Remark.objects.create(text=f'It is "{name}".', task=task))

    call_command("horsies_reaper", once=True, verbosity=0)

    print(list(Answer.objects.values_list("remark__task__task_name", flat=True)), Remark.objects.count())


main(sys.argv[1])
