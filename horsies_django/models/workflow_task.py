"""The nodes of workflows."""

from __future__ import annotations

from uuid import UUID

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..core.workflow_status import Join, NodeKind, WorkflowTaskStatus
from ..db.constraints import values_in_range
from ..db.fields import DateTimeField, JSONField


class WorkflowTask(models.Model):
    """A node of one run of a workflow. Only the engine changes it.

    The columns from ``task_name`` to ``limit_key`` are those of its future task. Counters track how many of the nodes
    that it waits for are open or have completed, so that the end of one never reads the others.
    """

    workflow_id: UUID  # set by the foreign keys below; only some versions of the type stubs know them
    task_id: UUID | None

    id = models.BigAutoField(primary_key=True)
    workflow = models.ForeignKey(
        "horsies_django.Workflow",
        models.CASCADE,
        db_constraint=False,
        db_index=False,
        related_name="nodes",
        verbose_name=_("workflow"),
    )
    task_index = models.PositiveIntegerField(_("index"), help_text=_("Its position in the list of nodes."))
    node_id = models.CharField(_("node"), max_length=128)
    kind = models.CharField(_("kind"), max_length=11, choices=NodeKind.choices, default=NodeKind.TASK)
    status = models.CharField(
        _("state"), max_length=9, choices=WorkflowTaskStatus.choices, default=WorkflowTaskStatus.PENDING
    )
    task = models.ForeignKey(
        "horsies_django.Task",
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("task"),
    )
    map_index = models.PositiveIntegerField(
        _("map"), null=True, blank=True, help_text=_("The map node that the item belongs to.")
    )

    waits_for = JSONField(_("waits for"), default=list, blank=True)
    dependents = JSONField(_("dependents"), default=list, blank=True)
    args_from = JSONField(_("results from"), default=dict, blank=True)
    values_from = JSONField(_("values from"), default=dict, blank=True)
    ctx_from = JSONField(_("context from"), null=True, blank=True)
    join = models.CharField(_("join"), max_length=6, choices=Join.choices, default=Join.ALL)
    min_success = models.PositiveIntegerField(_("min success"), null=True, blank=True)
    allow_failed_deps = models.BooleanField(_("allow failed dependencies"), default=False)
    open_deps = models.PositiveIntegerField(_("unfinished dependencies"), default=0)
    ok_deps = models.PositiveIntegerField(_("completed dependencies"), default=0)
    failed_deps = models.PositiveIntegerField(
        _("failed dependencies"),
        default=0,
        help_text=_("Including skipped ones, unless their own condition skipped them."),
    )
    open_ctx = models.PositiveIntegerField(_("unfinished context"), default=0)
    run_when = models.CharField(_("run when"), max_length=255, null=True, blank=True)
    skip_when = models.CharField(_("skip when"), max_length=255, null=True, blank=True)
    is_decided = models.BooleanField(
        _("conditions checked"), default=False, help_text=_("Its conditions allow it to run.")
    )

    over_index = models.PositiveIntegerField(_("over"), null=True, blank=True)
    param = models.CharField(_("parameter"), max_length=255, null=True, blank=True)
    seconds = models.FloatField(_("seconds"), null=True, blank=True)
    until = DateTimeField(_("until"), null=True, blank=True)
    event_name = models.CharField(_("event"), max_length=255, null=True, blank=True)
    event_timeout = models.FloatField(_("event timeout"), null=True, blank=True)
    definition_key = models.CharField(_("definition"), max_length=255, null=True, blank=True)

    task_name = models.CharField(_("task name"), max_length=255, null=True, blank=True)
    backend = models.CharField(_("backend"), max_length=64, default="default")
    queue_name = models.CharField(_("queue"), max_length=100, default="default")
    priority = models.SmallIntegerField(_("priority"), default=0)
    is_async = models.BooleanField(_("async"), default=False)
    typed_payload = models.BooleanField(_("rich values"), default=False)
    kwargs = JSONField(_("keyword arguments"), default=dict, blank=True)
    max_retries = models.PositiveSmallIntegerField(_("max retries"), default=0)
    retry_policy = JSONField(_("retry policy"), null=True, blank=True)
    rebuilds = models.PositiveSmallIntegerField(
        _("rebuilds"), default=0, help_text=_("How often its subworkflow was rebuilt.")
    )
    timeout = models.FloatField(_("timeout"), null=True, blank=True)
    retention = models.DurationField(_("retention"), null=True, blank=True)
    retention_by_state = JSONField(_("retention by state"), null=True, blank=True)
    good_until = DateTimeField(_("deadline"), null=True, blank=True)
    metadata = JSONField(_("metadata"), null=True, blank=True)
    limit_key = models.CharField(_("limit key"), max_length=255, null=True, blank=True)

    started_at = DateTimeField(_("started at"), null=True, blank=True)
    completed_at = DateTimeField(_("completed at"), null=True, blank=True)
    result = JSONField(_("result"), null=True, blank=True)
    error_code = models.CharField(_("error code"), max_length=100, null=True, blank=True)

    objects: models.Manager[WorkflowTask] = models.Manager()

    class Meta:
        db_table = "horsies_workflow_tasks"
        verbose_name = _("workflow task")
        verbose_name_plural = _("workflow tasks")
        indexes = [
            models.Index(
                fields=["workflow"],
                condition=Q(status__in=[WorkflowTaskStatus.ENQUEUED, WorkflowTaskStatus.RUNNING]),
                name="horsies_node_started",
            ),
            models.Index(fields=["task"], condition=Q(task__isnull=False), name="horsies_node_task"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["workflow", "task_index"], name="horsies_node_has_its_place_alone"),
            # With the columns swapped, a plan without statistics would use it to find a node by its position too.
            models.UniqueConstraint(fields=["node_id", "workflow"], name="horsies_node_has_its_id_alone"),
            models.CheckConstraint(
                condition=Q(status__in=WorkflowTaskStatus.values), name="horsies_node_status_is_known"
            ),
            values_in_range(
                "node",
                "started_at completed_at until good_until seconds event_timeout timeout retention task_index "
                "map_index min_success open_deps ok_deps failed_deps open_ctx over_index priority max_retries "
                "rebuilds workflow task",
            ),
        ]

    def __str__(self) -> str:
        return self.node_id
