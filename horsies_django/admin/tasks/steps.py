"""The steps and waits on a task's page."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Case, F, TextField, When
from django.db.models.functions import Cast
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ...core.mask import Mask
from ...core.numbers import format_duration
from ...db.expressions import StoredSize
from ...models import Task, TaskStep
from ...ops.diagnosis.waiting import and_more
from ...ops.payload_view.contents import contents_of, decode
from ...ops.payload_view.excerpt import MAX_BYTES, one_line
from ...ops.payload_view.json_text import chunks
from ..formatting import cut, format_time

#: Maximum records at the beginning, and at the end, of the table.
MAX_FIRST: Final = 50
MAX_LAST: Final = 50

#: Maximum characters of a result that is not folded.
MAX_LINE: Final = 80


def step_table(task: Task) -> dict[str, Any]:
    """Return the first and the last records of a task in the order of its body, and how many are between them.

    Takes two statements, or one if the task has none. A task has at most some ten thousand records: the first statement
    reads their keys.
    """
    steps = TaskStep.objects.using(task._state.db).filter(task=task.pk)
    keys = list(steps.order_by(F("position").asc(nulls_last=True), "pk").values_list("pk", flat=True))
    last = keys[MAX_FIRST:][-MAX_LAST:]
    more = len(keys) - MAX_FIRST - len(last)
    rows = _with_short_results(steps).in_bulk([*keys[:MAX_FIRST], *last]) if keys else {}
    mask = contents_of(task).mask
    first, end = ([_shown(rows[key], mask) for key in part if key in rows] for part in (keys[:MAX_FIRST], last))
    return {"first": first, "last": end, "more": and_more(more) if more > 0 else ""}


def _with_short_results(steps: Any) -> Any:
    """Read the size of each result, and the results that are short."""
    sized = steps.defer("result").annotate(size=StoredSize("result"))
    return sized.annotate(text=Case(When(size__lte=MAX_BYTES, then=Cast("result", TextField()))))


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

    The name of the step hides it as the name of an argument would.
    """
    if step.text is None:
        return f"({filesizeformat(step.size)})" if step.size else ""
    stored = mask.apply("result", decode(step.text)) or ""
    if not isinstance(stored, dict):
        return str(stored)
    if isinstance(error := stored.get("err"), dict):
        return format_html("<strong>{}</strong> {}", error.get("error_code"), cut(str(error.get("message") or "")))
    value = mask.apply(step.name.rpartition(":")[2], stored.get("ok"))
    line = one_line(value, mask)
    if len(line) <= MAX_LINE:
        return format_html("<code>{}</code>", line)
    text = "".join(chunks(value, mask))
    key, words = step.pk, f"{line[:MAX_LINE]}…"
    return format_html(
        '<details id="horsies-step-{}"><summary><code>{}</code></summary>'
        '<pre class="horsies-text" tabindex="0">{}</pre></details>',
        key,
        words,
        text,
    )
