"""Choose the rows whose pages are opened: ordinary ones and the worst ones."""

from __future__ import annotations

from typing import Any

from django.db.models import Model, Q

from .sizes import GRAPH, LARGE, MAP

WORST = {
    "task": [
        Q(attempt=50),
        Q(kwargs__has_key="page"),
        *(Q(status=status) for status in ("FAILED", "RUNNING", "CLAIMED", "CANCELLED", "EXPIRED")),
        Q(status="PENDING", queue_name="forgotten"),
        Q(status="PENDING", queue_name="media", deferred=False),
        Q(status="PENDING", priority__lt=0, deferred=False),
        Q(status="PENDING", next_retry_at__isnull=False),
        Q(status="PENDING", deferred=True, next_retry_at__isnull=True),
        Q(workflow_id__isnull=False, status="PENDING"),
        Q(workflow_id__isnull=False, status="COMPLETED"),
    ],
    "workflow": [
        *(Q(name=f"shop.flows.large_{number}") for number in (LARGE, MAP, GRAPH)),
        *(Q(status=status) for status in ("RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED")),
        Q(depth=1),
        Q(nodes__kind="subworkflow"),
    ],
    "errorgroup": [Q(error_code=code) for code in ("UNHANDLED_EXCEPTION", "ONLY_ONE", "SHOP_ERROR_3")],
    "queue": [Q(name="default"), Q(name="media"), Q(name="forgotten")],
}


def rows_of(model: type[Model]) -> list[Any]:
    """Return the keys of the first, the last and the worst rows of ``model``."""
    rows = model._default_manager.all()
    ends = [
        rows.order_by("pk").values_list("pk", flat=True).first(),
        rows.order_by("-pk").values_list("pk", flat=True).first(),
    ]
    worst = [rows.filter(kind).values_list("pk", flat=True)[:1] for kind in WORST.get(model._meta.model_name or "", ())]
    keys = [*ends, *(key for found in worst for key in found)]
    return list(dict.fromkeys(key for key in keys if key is not None))
