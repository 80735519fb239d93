"""Stale heartbeats without waiting: the times of held tasks are made an hour older."""

from datetime import timedelta

from django.db.models import F

from horsies_django.models import Heartbeat, Task
from tests.conftest import wait_until

AN_HOUR = timedelta(hours=1)


def make_heartbeats_old() -> None:
    """Make the heartbeats of held tasks an hour old: live workers send new ones, the others look dead."""
    Heartbeat.objects.update(sent_at=F("sent_at") - AN_HOUR)
    Task.objects.active().update(claimed_at=F("claimed_at") - AN_HOUR, started_at=F("started_at") - AN_HOUR)


def wait_for_heartbeats(*roles: tuple[object, str]) -> None:
    """Wait for a new heartbeat for each of these tasks, in that role."""
    known = set(Heartbeat.objects.values_list("pk", flat=True))
    for task_id, role in roles:
        fresh = Heartbeat.objects.filter(task_id=task_id, role=role)
        wait_until(lambda fresh=fresh: set(fresh.values_list("pk", flat=True)) - known, what=f"a heartbeat of a {role}")
