"""Schedules: declare them with the task; workers send each slot once."""

from datetime import UTC, datetime

import project
from django.test.utils import setup_test_environment

project.setup()
setup_test_environment()  # travel() works in tests only; your test runner does this

from horsies_django import Cron, Every, schedule, task
from horsies_django.models import Schedule
from horsies_django.testing import drain, travel, travel_to


@task(takes_context=True)
def report(context, kind):
    print(f"{kind}: for {context.scheduled_for:%a %H:%M}")


schedule("morning", report, Cron("0 9 * * MON-FRI"), args=["sales"], timezone="Europe/Berlin")
schedule("hourly", report, Every(hours=1), args=["stock"], overlap="skip")

with travel_to(datetime(2031, 1, 6, 7, 30, tzinfo=UTC)):  # a Monday
    print(drain(schedules=True))  # stores the schedules; nothing is due
    with travel(hours=1, minutes=1):
        print(drain(schedules=True))

for row in Schedule.objects.order_by("name"):
    print(row.name, row.timing, row.timezone, "runs:", row.run_count)

morning = Schedule.objects.get(name="morning")
print(*[f"{slot:%a %d %b %H:%M}" for slot in morning.slots.upcoming(datetime(2031, 1, 9, 12, tzinfo=UTC), 3)], sep=", ")

# Output:
# nothing was due
# sales: for Mon 08:00
# stock: for Mon 08:30
# 2 COMPLETED
# hourly every:3600 UTC runs: 1
# morning cron:0 9 * * MON-FRI Europe/Berlin runs: 1
# Fri 10 Jan 08:00, Mon 13 Jan 08:00, Tue 14 Jan 08:00
