from horsies_django import task


@task(queue_name="emials")
def mistyped() -> None:
    """For a queue whose name is mistyped."""


@task(queue_name="reports")
def unknown() -> None:
    """For an unknown queue."""


@task(queue_name="emails")
def fine() -> None:
    """For a known queue."""


@task(backend="second")
def unread() -> None:
    """For a backend with unreadable QUEUES: the check reports the setting, not this task."""
