"""The Django app."""

from __future__ import annotations

import sys
from typing import Any

from django.apps import AppConfig
from django.core.checks import register
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.translation import gettext_lazy as _


class HorsiesConfig(AppConfig):
    """Imports the modules that register tasks and workflows, and registers the checks."""

    name = "horsies_django"
    verbose_name = _("Background tasks")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: Any) -> None:
        """Say what to install where Django could only say that no driver can be loaded, once it comes to models."""
        super().__init__(app_name, app_module)
        try:
            connections[DEFAULT_DB_ALIAS]  # loads the driver and does not connect
        except ImproperlyConfigured as error:
            from .tables import check_database

            try:
                check_database(DEFAULT_DB_ALIAS)
            except ImproperlyConfigured as clearer:
                if sys.argv[1:] and sys.argv[1].startswith("horsies_"):
                    sys.exit(str(clearer))  # one line; Django would print a traceback
                raise clearer from error

    def ready(self) -> None:
        """Import the task framework, which Django itself does not: its checks would be skipped in silence."""
        from . import checks, compat  # noqa: F401  # to import them is the point
        from .loading import load_modules
        from .printable import guard_logs

        guard_logs()
        load_modules()
        register(checks.check_names)
        register(checks.check_workflows)
        register(checks.check_schedules)
        register(checks.check_modules)
        register(checks.check_queues)
