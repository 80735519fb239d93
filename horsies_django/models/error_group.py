"""Error groups: failures with the same exception class, error code and location."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..db.constraints import values_in_range
from ..db.fields import DateTimeField

#: The number of hexadecimal digits of a fingerprint.
FINGERPRINT_LENGTH: Final = 12


def is_fingerprint(text: str) -> bool:
    """Return whether the text has the form of a fingerprint."""
    return len(text) == FINGERPRINT_LENGTH and set(text) <= set("0123456789abcdef")


class ErrorGroup(models.Model):
    """Failed attempts with one fingerprint. The reaper writes it when it rolls up attempts.

    It outlives its tasks: it is deleted with the last roll-up that counts it.
    """

    fingerprint = models.CharField(_("error group"), primary_key=True, max_length=12)
    exception_class = models.CharField(_("exception class"), max_length=255, blank=True)
    error_code = models.CharField(_("error code"), max_length=100)
    location = models.CharField(_("location"), max_length=255, blank=True, help_text=_("Where it was raised."))
    first_seen_at = DateTimeField(_("first seen at"))
    last_seen_at = DateTimeField(_("last seen at"), db_index=True)
    #: Primary key of its newest attempt, which may have been deleted with its task.
    last_attempt_id = models.PositiveBigIntegerField(_("last attempt"))

    class Meta:
        db_table = "horsies_error_groups"
        verbose_name = _("error group")
        verbose_name_plural = _("errors")
        # The admin shows it to all users who may view tasks.
        default_permissions = ()
        constraints = [
            values_in_range("error_group", "first_seen_at last_seen_at last_attempt_id"),
        ]

    def __str__(self) -> str:
        name = self.exception_class.rpartition(".")[2] or self.error_code
        if not self.location:
            return name
        return gettext("%(error)s in %(location)s") % {"error": name, "location": self.location}
