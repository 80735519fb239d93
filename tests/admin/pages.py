"""All pages of the admin, for tests that open each. Add a new page here."""

from django.urls import reverse


def pages_of(site, task_id, worker_id):
    """Return the URLs of the pages of ``site``."""
    pages = (
        ("index",),
        ("horsies_django_task_changelist",),
        ("horsies_django_task_change", task_id),
        ("horsies_django_task_history", task_id),
        ("horsies_django_task_do", task_id, "cancel"),
        ("horsies_django_queue_changelist",),
        ("horsies_django_queue_change", "~emails"),
        ("horsies_django_queue_add",),
        ("horsies_django_schedule_changelist",),
        ("horsies_django_schedule_add",),
        ("horsies_django_worker_changelist",),
        ("horsies_django_worker_change", worker_id),
        ("horsies_django_worker_do", worker_id, "stop"),
    )
    return [reverse(f"{site}:{name}", args=args) for name, *args in pages]
