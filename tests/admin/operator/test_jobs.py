"""The eighteen jobs of an operator, each from the overview, with at most so many clicks."""

from __future__ import annotations

from horsies_django.models import Queue


def test_a_queue_is_paused_and_resumed(operator):
    operator.click("emails")
    operator.click("Pause")
    operator.await_text("Queue paused.")
    assert Queue.objects.get(name="emails").paused
    operator.click("Resume")
    operator.await_text("Queue resumed.")
    assert not Queue.objects.get(name="emails").paused
    assert operator.clicks <= 3
