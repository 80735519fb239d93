"""An app of a project's own that has tasks."""

from django.apps import AppConfig


class HasTasks(AppConfig):
    name = "tests.checks"

    def ready(self) -> None:
        import tests.enqueue.jobs  # noqa: F401
