"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register
from django.utils.translation import gettext_lazy as _


class HorsiesConfig(AppConfig):
    """Imports the modules that register tasks and workflows, and registers the checks."""

    name = "horsies_django"
    verbose_name = _("Background tasks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the task framework, which Django itself does not: its checks would be skipped in silence."""
        from . import checks, compat  # noqa: F401  # to import them is the point
        from .loading import load_modules

        load_modules()
        register(checks.check_workflows)
        register(checks.check_schedules)
        register(checks.check_modules)
