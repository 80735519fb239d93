"""Silence that nobody has to wait for: what is known of the tasks that somebody holds is made an hour older."""

from datetime import timedelta

from django.db.models import F

from horsies_django.models import Heartbeat, Task
from tests.conftest import wait_until

AN_HOUR = timedelta(hours=1)


def grow_old() -> None:
    """Who holds a task has not been heard of for an hour. Who is alive beats again, the others look dead."""
    Heartbeat.objects.update(sent_at=F("sent_at") - AN_HOUR)
    Task.objects.active().update(claimed_at=F("claimed_at") - AN_HOUR, started_at=F("started_at") - AN_HOUR)


def wait_for_beats(*roles: tuple[object, str]) -> None:
    """Wait until it was beaten anew for each of these tasks, in that role."""
    known = set(Heartbeat.objects.values_list("pk", flat=True))
    for task_id, role in roles:
        fresh = Heartbeat.objects.filter(task_id=task_id, role=role)
        wait_until(lambda fresh=fresh: set(fresh.values_list("pk", flat=True)) - known, what=f"a beat of a {role}")
