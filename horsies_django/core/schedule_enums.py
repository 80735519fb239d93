"""The words of a schedule that name a behaviour."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _

#: What ``max_catch_up_runs`` may be at most.
MAX_CATCH_UP: Final = 10_000

#: Seconds of jitter at most.
MAX_JITTER: Final = 86_400


class CatchUp(models.TextChoices):
    """What becomes of slots that nobody was there for."""

    LATEST = "latest", _("Only the latest is run")
    ALL = "all", _("Each is run, up to a limit")
    NONE = "none", _("None is run")


class Overlap(models.TextChoices):
    """What becomes of a slot while the run before has not finished."""

    ALLOW = "allow", _("Both run")
    SKIP = "skip", _("It is skipped")
    CANCEL_PREVIOUS = "cancel_previous", _("The run before is cancelled")


class DisabledBy(models.TextChoices):
    """Why a schedule is disabled."""

    OPERATOR = "OPERATOR", _("An operator")
    CODE = "CODE", _("The code")
    END = "END", _("It has come to its end")
    TIMING = "TIMING", _("Its timing can't be read")
