"""An app that connects the receiver of crashes."""

import sys

from django.apps import AppConfig


class CrashesConfig(AppConfig):
    """Imports the page's receiver, as the page says."""

    name = "tests.extras.sentry"
    label = "crashes"

    def ready(self) -> None:
        """Import it."""
        assert sys.modules["shop.crashes"].report
