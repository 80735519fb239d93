"""An app of a project's own that has tasks."""

from django.apps import AppConfig


class HasTasks(AppConfig):
    name = "tests.settings_and_checks"

    def ready(self) -> None:
        import tests.sending.jobs  # noqa: F401
