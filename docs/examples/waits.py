"""Waits: a body sleeps for days and waits for people, and holds no slot meanwhile."""

import project

project.setup()

from horsies_django import send_events, task
from horsies_django.exceptions import WaitTimeout
from horsies_django.models import Task
from horsies_django.testing import drain


@task(takes_context=True)
def approve(context, invoice):
    try:
        answer = context.wait_event("approved", timeout=3 * 86_400)
    except WaitTimeout:
        return f"invoice {invoice}: no answer"
    context.sleep(86_400)  # pay a day later
    return f"invoice {invoice}: {answer['by']} approved it"


handles = approve.send_many({"invoice": number} for number in (1, 2, 3))
drain()
print(list(Task.objects.values_list("status", "waits_for")))

print(handles[0].send_event("approved", {"by": "Ann"}))
print(send_events({handles[1]: {"by": "Bob"}}, "approved"))
drain()
print(*sorted(Task.objects.values_list("waits_for", flat=True)))

drain(scheduled=True)  # the sleeps and the time-out end
for handle in handles:
    print(handle.value(0))

# Output:
# [('PENDING', 'event:approved'), ('PENDING', 'event:approved'), ('PENDING', 'event:approved')]
# True
# 1
# event:approved sleep sleep
# invoice 1: Ann approved it
# invoice 2: Bob approved it
# invoice 3: no answer
