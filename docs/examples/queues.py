"""Queues: pause, resume and limit them while workers run."""

import project

project.setup()

from horsies_django import task
from horsies_django.models import Queue
from horsies_django.testing import drain


@task(queue_name="emails")
def send_mail(to):
    print(f"mail to {to}")


emails = Queue.objects.named("emails")  # a queue needs a row only if you change its rules
emails.pause()
send_mail.send("ann@example.com")
send_mail.send("ben@example.com")
print(drain())

emails.resume()
emails.set(rate_limit="1/h", max_concurrency=5)
print(drain())

# Output:
# nothing was due
# mail to ann@example.com
# 1 COMPLETED
