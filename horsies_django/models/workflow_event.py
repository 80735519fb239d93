"""Events sent to workflows."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..db.constraints import values_in_range
from ..db.fields import DateTimeField, JSONField
from ..db.now import Now


class WorkflowEvent(models.Model):
    """An event, stored even if its node does not wait yet. A later event replaces an earlier one of the same name."""

    id = models.BigAutoField(primary_key=True)
    workflow = models.ForeignKey(
        "horsies_django.Workflow",
        models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="events",
        verbose_name=_("workflow"),
    )
    name = models.CharField(_("name"), max_length=255)
    payload = JSONField(_("payload"), null=True, blank=True)
    sent_at = DateTimeField(_("sent at"), db_default=Now())

    objects: models.Manager[WorkflowEvent] = models.Manager()

    class Meta:
        db_table = "horsies_workflow_events"
        verbose_name = _("workflow event")
        verbose_name_plural = _("workflow events")
        constraints = [
            models.UniqueConstraint(fields=["workflow", "name"], name="horsies_event_is_there_once"),
            values_in_range("event", "sent_at workflow"),
        ]

    def __str__(self) -> str:
        return self.name
