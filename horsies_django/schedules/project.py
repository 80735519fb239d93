"""The name of a project: its schedules are told from those of others in the same database by it."""

from __future__ import annotations

from django.conf import settings

from ..core.options import Options


def project_of(options: Options) -> str:
    """Return OPTIONS["project"], or else the package of the settings."""
    return options.project or str(getattr(settings, "SETTINGS_MODULE", None) or "project").split(".")[0][:100]
