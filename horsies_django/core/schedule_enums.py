"""The options of schedules with fixed values."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

#: The maximum of ``max_catch_up_runs``.
MAX_CATCH_UP: Final = 10_000

#: Maximum seconds of jitter.
MAX_JITTER: Final = 86_400


class CatchUp(models.TextChoices):
    """What happens to slots that were missed while no scheduler ran."""

    LATEST = "latest", _("Run the latest only")
    ALL = "all", _("Run each, up to a limit")
    NONE = "none", _("Run none")


class Overlap(models.TextChoices):
    """What happens to a slot while the previous run has not finished."""

    ALLOW = "allow", _("Run both")
    SKIP = "skip", _("Skip the new run")
    CANCEL_PREVIOUS = "cancel_previous", _("Cancel the previous run")


class DisabledBy(models.TextChoices):
    """Why a schedule is disabled."""

    OPERATOR = "OPERATOR", _("An operator")
    CODE = "CODE", _("The code")
    END = "END", _("End time reached")
    TIMING = "TIMING", _("Invalid timing")
