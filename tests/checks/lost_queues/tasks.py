from horsies_django import task


@task(queue_name="emials")
def mistyped() -> None:
    """For a queue that there is, but for its name."""


@task(queue_name="reports")
def unknown() -> None:
    """For a queue that there is not."""


@task(queue_name="emails")
def fine() -> None:
    """For one that there is."""


@task(backend="second")
def unread() -> None:
    """For a backend whose queues can't be read: that is told of the settings alone."""
