"""Workflows, one row for each run, and the events sent to them.

A transaction locks the root's row before it changes anything of the tree.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Self
from uuid import UUID

from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from ..core.ids import uuid7
from ..core.workflow_status import WORKFLOW_TERMINAL_STATES, OnError, WorkflowStatus
from ..db.constraints import values_in_range
from ..db.fields import DateTimeField, JSONField
from ..db.now import Now

_LIVE = sorted(set(WorkflowStatus) - WORKFLOW_TERMINAL_STATES)
_UNSUCCESSFUL = sorted(WORKFLOW_TERMINAL_STATES - {WorkflowStatus.COMPLETED})


class WorkflowQuerySet(models.QuerySet["Workflow"]):
    """Workflows, filtered and locked."""

    def live(self) -> Self:
        """Workflows that have not ended."""
        return self.filter(status__in=_LIVE)

    def holding_unique_key(self, unique_key: str | None) -> Self:
        """The live workflow that holds this key, if there is one."""
        return self.none() if unique_key is None else self.live().filter(unique_key=unique_key)

    def past_retention(self) -> Self:
        """Roots of ended trees whose retention has passed, without those in which a task still runs."""
        return self.ended_trees().filter(kept_until__lte=Now())

    def ended_trees(self) -> Self:
        """Roots of trees in which everything has ended."""
        open_below = Workflow.objects.using(self.db).filter(root_id=OuterRef("pk"), depth__gt=0, open_count__gt=0)
        ended = self.filter(status__in=sorted(WORKFLOW_TERMINAL_STATES), parent__isnull=True, open_count=0)
        return ended.filter(~Exists(open_below))

    def ended_awaited(self) -> Self:
        """Ended workflows for which tasks may wait, which are to be woken."""
        return self.filter(status__in=sorted(WORKFLOW_TERMINAL_STATES), is_awaited=True).order_by("pk")

    def lock(self, roots: Collection[UUID], *, skip: bool = False) -> set[UUID]:
        """Lock the trees with these roots, before any other row of theirs; return the roots.

        With ``skip``, leave out trees that another transaction has locked.
        """
        return set(self.filter(pk__in=roots).locked(skip=skip).values_list("pk", flat=True))

    def locked(self, *, skip: bool) -> Self:
        """These rows, locked as they are read, in the order of their ids, so that two transactions can't deadlock."""
        return self.order_by("pk").select_for_update(skip_locked=skip, no_key=True)


class Workflow(models.Model):
    """One run of a workflow. Only the engine changes ``status``.

    A subworkflow has a row of its own; ``root_id`` is the root of the tree, whose row is the lock of all.
    """

    parent_id: int | None  # set by the foreign key below; only some versions of the type stubs know it

    id = models.UUIDField(_("id"), primary_key=True, default=uuid7, editable=False)
    name = models.CharField(_("name"), max_length=255)
    definition_key = models.CharField(_("definition"), max_length=255, null=True, blank=True)
    backend = models.CharField(_("backend"), max_length=64, default="default")
    status = models.CharField(_("state"), max_length=9, choices=WorkflowStatus.choices, default=WorkflowStatus.PENDING)
    on_error = models.CharField(_("on error"), max_length=5, choices=OnError.choices, default=OnError.FAIL)
    success_policy = JSONField(_("success policy"), null=True, blank=True)
    output_index = models.PositiveIntegerField(_("output"), null=True, blank=True)

    # The default is in the database too, for processes of the previous release, which insert without this column.
    is_batch = models.BooleanField(
        _("batch"),
        default=False,
        db_default=False,
        help_text=_("The first node represents the calls that are added."),
    )

    # A task waits for its end. Read with the other columns of a live workflow, so that nothing looks for such tasks at
    # the end of any other.
    is_awaited = models.BooleanField(default=False, db_default=False)

    root_id = models.UUIDField(_("root"))
    parent = models.ForeignKey(
        "horsies_django.WorkflowTask",
        models.CASCADE,
        db_constraint=False,
        db_index=False,
        null=True,
        blank=True,
        related_name="children",
        verbose_name=_("parent node"),
    )
    depth = models.PositiveSmallIntegerField(_("depth"), default=0)
    is_replaced = models.BooleanField(
        _("replaced"), default=False, help_text=_("The workflow failed and was replaced by a new one.")
    )

    queue_name = models.CharField(_("queue"), max_length=100, null=True, blank=True)
    priority = models.SmallIntegerField(_("priority"), null=True, blank=True)
    good_until = DateTimeField(_("deadline"), null=True, blank=True)
    unique_key = models.CharField(_("unique key"), max_length=255, null=True, blank=True)

    schedule_id = models.PositiveBigIntegerField(
        _("schedule"), null=True, blank=True, help_text=_("The schedule that started the workflow.")
    )

    node_count = models.PositiveIntegerField(_("nodes"), default=0)
    open_count = models.PositiveIntegerField(
        _("unfinished nodes"), default=0, help_text=_("Nodes that have not finished.")
    )
    failed_index = models.PositiveIntegerField(_("first failed node"), null=True, blank=True)

    sent_at = DateTimeField(_("sent at"), db_default=Now())
    started_at = DateTimeField(_("started at"), null=True, blank=True)
    paused_at = DateTimeField(_("paused at"), null=True, blank=True)
    completed_at = DateTimeField(_("completed at"), null=True, blank=True)
    cancelled_at = DateTimeField(_("cancelled at"), null=True, blank=True)
    kept_until = DateTimeField(
        _("kept until"),
        null=True,
        blank=True,
        help_text=_("The reaper deletes the workflow then, with its subworkflows."),
    )

    result = JSONField(_("result"), null=True, blank=True)
    error = JSONField(_("error"), null=True, blank=True)

    objects = WorkflowQuerySet.as_manager()

    class Meta:
        db_table = "horsies_workflows"
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")
        permissions = [
            ("pause_workflow", "Can pause workflow"),
            ("resume_workflow", "Can resume workflow"),
            ("cancel_workflow", "Can cancel workflow"),
            ("retry_workflow", "Can retry workflow"),
            ("send_event_workflow", "Can send event to workflow"),
        ]
        indexes = [
            models.Index(fields=["status", "id"], condition=Q(status__in=_LIVE), name="horsies_workflow_live"),
            models.Index(
                fields=["good_until"],
                condition=Q(status__in=_LIVE, good_until__isnull=False),
                name="horsies_workflow_deadline",
            ),
            models.Index(fields=["root_id"], condition=Q(depth__gt=0), name="horsies_workflow_tree"),
            models.Index(fields=["parent"], condition=Q(parent__isnull=False), name="horsies_workflow_parent"),
            models.Index(fields=["kept_until"], condition=Q(kept_until__isnull=False), name="horsies_workflow_kept"),
            models.Index(
                fields=["schedule_id", "id"], condition=Q(schedule_id__isnull=False), name="horsies_workflow_schedule"
            ),
            # For the admin. A workflow that completes costs nothing in the first one.
            models.Index(
                fields=["status", "id"], condition=Q(status__in=_UNSUCCESSFUL), name="horsies_workflow_unsuccessful"
            ),
            models.Index(
                fields=["id"],
                condition=Q(status__in=sorted(WORKFLOW_TERMINAL_STATES), is_awaited=True),
                name="horsies_workflow_awaited",
            ),
            models.Index(
                fields=["name", "id"], opclasses=["varchar_pattern_ops", "uuid_ops"], name="horsies_workflow_name"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=WorkflowStatus.values), name="horsies_workflow_status_is_known"
            ),
            values_in_range(
                "workflow",
                "sent_at started_at paused_at completed_at cancelled_at good_until kept_until depth output_index "
                "priority schedule_id node_count open_count failed_index id root_id",
            ),
            models.UniqueConstraint(
                fields=["unique_key"],
                condition=Q(status__in=_LIVE, unique_key__isnull=False),
                name="horsies_live_workflow_has_its_key_alone",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.pk})"


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
