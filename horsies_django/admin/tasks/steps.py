"""The steps and waits on a task's page."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Case, TextField, When
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, JSONObject, Left
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ...core.mask import Mask
from ...core.numbers import format_duration
from ...core.status import StepKind, StepStatus
from ...db.expressions import StoredSize
from ...models import Task, TaskStep
from ...ops.diagnosis.reason import and_more
from ...ops.payload_view.contents import contents_of, decode
from ...ops.payload_view.excerpt import MAX_BYTES, one_line
from ..formatting import MAX_TEXT, as_json, cut, format_time

#: Maximum records at the beginning, and at the end, of the table.
MAX_FIRST: Final = 50
MAX_LAST: Final = 50

#: Maximum characters of a result on one line.
MAX_LINE: Final = 80


def step_table(task: Task) -> dict[str, Any]:
    """Return the first and the last records of a task in the order of its body, and how many are between them.

    Takes one statement, or three if there are more than ``MAX_FIRST``.
    """
    steps = TaskStep.objects.using(task._state.db).filter(task=task.pk).in_order()
    sized = steps.defer("result").annotate(size=StoredSize("result"))
    error = JSONObject(error_code=KT("result__err__error_code"), message=Left(KT("result__err__message"), MAX_TEXT + 1))
    whole, cut_down = Cast("result", TextField()), Cast(JSONObject(err=error), TextField())
    text = Case(When(size__lte=MAX_BYTES, then=whole), When(status=StepStatus.FAILED, then=cut_down))
    rows = sized.annotate(text=text)
    parts, more, mask = [rows[:MAX_FIRST]], 0, contents_of(task).mask
    if len(parts[0]) == MAX_FIRST:
        more = max(0, steps.count() - MAX_FIRST - MAX_LAST)
        parts.append(rows[MAX_FIRST + more :][:MAX_LAST])
    return {"parts": [[_shown(row, mask) for row in part] for part in parts], "more": and_more(more) if more else ""}


def _shown(step: Any, mask: Mask) -> dict[str, Any]:
    ended = step.completed_at
    until = gettext("until %s") % format_time(step.due_at, exactly=False) if step.due_at else ""
    return {
        "row": step,
        "result": _result(step, mask),
        "started": format_time(step.started_at),
        "took": format_duration(ended - step.started_at) if ended else "",
        "completed": format_time(ended) if ended else until,
    }


def _result(step: Any, mask: Mask) -> SafeString | str:
    """Return the value of a record, or the code and the message of its error, masked as those of its task.

    The name of the step hides it as the name of an argument would. What has no name to be masked by is left out: the
    place of a loop, and the result of a workflow, whose tasks have masks of their own.
    """
    size = f"({filesizeformat(step.size)})" if step.size else ""
    if step.text is None:
        return size
    stored = mask.apply("result", decode(step.text)) or ""
    if not isinstance(stored, dict):
        return str(stored)
    is_other = step.kind == StepKind.WAIT
    if isinstance(error := stored.get("err"), dict):
        message = "" if is_other else cut(str(error.get("message") or ""))
        return format_html("<strong>{}</strong> {}", error.get("error_code"), message)
    if is_other:
        return size
    value = mask.apply(step.name.rpartition(":")[2], stored.get("ok"))
    if step.kind == StepKind.BATCHES and isinstance(value, dict):
        value.pop("cursor", None)
    line = one_line(value, mask)
    return format_html("<code>{}</code>", line) if len(line) <= MAX_LINE else as_json(value, mask)
