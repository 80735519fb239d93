"""A project's app with tasks."""

from django.apps import AppConfig


class HasTasks(AppConfig):
    name = "tests.checks"

    def ready(self) -> None:
        import tests.enqueue.jobs  # noqa: F401
