"""The admin of queues: depth, workers, limits and pausing. A queue without a row has no limits and is listed too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import JSONField, Model, QuerySet
from django.forms import Textarea
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...core.numbers import fill_numbers, format_lower_bound, format_number
from ...core.operations import acting_as
from ...core.options import Options
from ...core.queue_policy import COLUMNS, QueuePolicy
from ...models import Queue, Task
from ...models.depths import Depth
from ...models.queue import QueueQuerySet
from ..actions.admin_action import AdminAction
from ..ages import age_at
from ..base import first_backend, queue_database, read_database
from ..form_fields import JSON_BOX, JSONPayloadField, UniqueNameForm, describe_changes
from ..formatting import format_count
from ..links import Links
from ..live_columns import LiveAdmin, live_column

if TYPE_CHECKING:
    from ...ops.metrics.snapshot import MetricsSnapshot, QueueMetrics

NAME_LENGTH: Final[int] = Queue._meta.get_field("name").max_length or 0

PAUSE: Final = AdminAction(
    name="pause",
    label=_("Pause"),
    list_label=_("Pause selected queues"),
    act=QueueQuerySet.pause,
    message=lambda count: ngettext("%d queue paused.", "%d queues paused.", count),
    has_button=lambda queue: not queue.paused,
    logged_columns=("paused",),
)

RESUME: Final = AdminAction(
    name="resume",
    label=_("Resume"),
    list_label=_("Resume selected queues"),
    act=QueueQuerySet.resume,
    message=lambda count: ngettext("%d queue resumed.", "%d queues resumed.", count),
    has_button=lambda queue: queue.paused,
    logged_columns=("paused",),
)


class QueueList(ChangeList):
    """Lists all known queues on one page."""

    def get_results(self, request: HttpRequest) -> None:
        """Add the queues without a row, and the metrics of each."""
        from ...ops.metrics.snapshot import MAX_QUEUES, collect

        super().get_results(request)
        snapshot, rows = collect(_options().for_reading), {queue.name: queue for queue in self.queryset[:MAX_QUEUES]}
        self.result_list = [
            _with_metrics(rows.get(metrics.name) or unsaved_queue(metrics.name), metrics, snapshot)
            for metrics in snapshot.queues
        ]
        self.is_more = snapshot.is_more_queues
        self.result_count = self.full_result_count = len(self.result_list)
        self.multi_page = self.can_show_all = False


def unsaved_queue(name: str) -> Queue:
    """Return a Queue that is not in the table."""
    queue = Queue(name=name)
    queue.pk = f"~{name}"  # a placeholder until the row is made
    return queue


def _options() -> Options:
    backend = first_backend()
    return backend.parsed.options if backend else Options()


def _with_metrics(queue: Any, metrics: QueueMetrics, snapshot: MetricsSnapshot) -> Any:
    """Add the metrics of a queue, the number of workers that serve it, and the database's clock."""
    queue.metrics, queue.second = metrics, snapshot.second
    queue.workers = sum(worker.may_claim and worker.serves(queue.name) for worker in snapshot.workers)
    return queue


def queue_state(queue: Queue) -> SafeString:
    """Return whether the queue is paused, as a label."""
    if queue.paused:
        return format_html('<span class="horsies-paused">{}</span>', _("paused"))
    return format_html('<span class="horsies-alive">{}</span>', _("active"))


def _due(queue: Any) -> str:
    return format_lower_bound(queue.metrics.depth.due, queue.metrics.depth.is_more)


def _latency(queue: Any) -> SafeString | str:
    """Return the age of the oldest due task, marked if it exceeds the threshold of the settings."""
    from ..latency import latency_cell

    return latency_cell(age_at(queue.metrics.depth.waits, queue.second, "full"), queue.metrics.latency_warning)


def _blocked(queue: Any) -> SafeString | str:
    """Return the number of blocked tasks, and how long the oldest has waited for its limit."""
    depth: Depth = queue.metrics.depth
    number = format_lower_bound(depth.blocked, depth.is_more_blocked)
    if depth.blocked_waits is None:
        return number
    return format_html("{} ({})", number, age_at(depth.blocked_waits, queue.second, "full"))


def _held(queue: Any) -> str:
    return format_number(queue.metrics.status.held)


def _scheduled(queue: Any) -> str:
    return format_count(queue.metrics.counts["scheduled"])


def _hour(queue: Any) -> str:
    """Return how many attempts ended in the last hour, and how many of them failed for good."""
    counts = queue.metrics.throughput.counts
    ended, failed = counts.total(), counts["failed"]
    if not failed:
        return format_number(ended)
    words = ngettext("%(ended)d, %(failed)d failed", "%(ended)d, %(failed)d failed", failed)
    return fill_numbers(words, {"ended": ended, "failed": failed})


def _rules(queue: Any) -> str:
    """Return its limits and other settings in words, with the used part of its limits."""
    return "; ".join(queue.metrics.status.descriptions) or "-"


def _live(name: str, title: Any, shown: Callable[[Any], SafeString | str]) -> Any:
    """Return a column that refreshes."""

    @admin.display(description=title)
    def column(_admin: Any, queue: Any) -> SafeString | str:
        return shown(queue)

    column.__name__ = name
    return live_column(column)


class QueueAdmin(LiveAdmin):
    """Shows, pauses and resumes queues, and edits their limits."""

    admin_actions = (PAUSE, RESUME)
    form = UniqueNameForm
    formfield_overrides = {JSONField: {"form_class": JSONPayloadField, "widget": Textarea(attrs=JSON_BOX)}}
    list_display = (
        "name",
        "shown_state",
        "shown_due",
        "shown_oldest",
        "shown_blocked",
        "shown_held",
        "shown_scheduled",
        "shown_hour",
        "shown_workers",
        "shown_rules",
    )
    sortable_by = ()
    ordering = ("name",)
    change_form_template = "admin/horsies_django/queue_change_form.html"

    class Media:
        css = {"all": ["horsies_django/charts.css"]}

    # Permissions. Adding a paused row or deleting one would pause or resume the queue, so neither is possible.

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether this user may add a row for a queue."""
        return self.has_right(request, "add")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether this user may edit a queue's settings."""
        return self.has_right(request, "change")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether this user may delete the row; deleting a paused queue's row would resume it."""
        is_deletable = isinstance(obj, Queue) and not obj._state.adding and not obj.paused
        return self.has_right(request, "delete") and is_deletable

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the form's fields: the name and ``paused`` only for a new queue.

        Tasks refer to the name, and saving an outdated page must not resume a queue.
        """
        is_fresh = obj is None and PAUSE.is_allowed(request, self.model)
        return [*(["name"] if obj is None else []), *(["paused"] if is_fresh else []), *COLUMNS]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Show beside each field what applies if it is empty."""
        texts = {name: f"{_help_text(name)} {default}" for name, default in _defaults(obj).items()}
        return super().get_form(request, obj, change, **{"help_texts": texts} | kwargs)

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Write old and new values of edited fields to the history."""
        if add:
            return super().construct_change_message(request, form, formsets, add)
        return describe_changes(form, _default_values(form.instance.name))

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        """Save to the workers' database, and only edited fields."""
        if change:  # the row may have been deleted meanwhile
            edited = {name: getattr(obj, name) for name in COLUMNS if name in form.changed_data}
            if "retention" in edited:  # a retention of None also clears the other column
                edited["retention_by_state"] = obj.retention_by_state
            with acting_as(request.user.get_username(), "admin"):
                QueueQuerySet(Queue, using=queue_database()).named(obj.name).set(**edited)
        else:
            obj.save(using=queue_database())

    def delete_model(self, request: HttpRequest, obj: Queue) -> None:
        """Delete it, unless it has been paused since the page was opened."""
        if not Queue.objects.using(queue_database()).filter(pk=obj.pk, paused=False).delete()[0]:
            raise PermissionDenied

    # Queues without a row: the row is made by the first change.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list of all known queues."""
        return QueueList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Find a queue by its row's key, or by its name after a ``~``."""
        if not object_id.startswith("~"):
            return super().get_object(request, object_id, from_field)
        if not _is_name(name := object_id[1:]):
            return None
        return self.get_queryset(request).filter(name=name).first() or unsaved_queue(name)

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Make rows for the selected queues that have none, then act."""
        keys = request.POST.getlist(ACTION_CHECKBOX_NAME)
        is_allowed = any(allowed.name == request.POST.get("action") for allowed in self.allowed_actions(request))
        if is_allowed and any(key.startswith("~") for key in keys):
            posted = request.POST.copy()
            posted.setlist(ACTION_CHECKBOX_NAME, [self._row_of(key) for key in keys])
            request.POST = posted  # type: ignore[assignment]  # a mutable copy, which Django only reads
        return super().response_action(request, queryset, *args, **kwargs)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Add up to when the finished tasks are counted."""
        from ..periods import counted_until

        return super().changelist_view(request, {**counted_until(read_database()), **(extra_context or {})})

    def changeform_view(self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Make the row if there is none, then edit."""
        if object_id is not None and request.method == "POST" and self.has_change_permission(request):
            object_id = quote(self._row_of(unquote(object_id)))
        return super().changeform_view(request, object_id, *args, **kwargs)

    def action_view(self, request: HttpRequest, object_id: str, action: str) -> HttpResponse:
        """Make the row if there is none, then act."""
        key, may_view = unquote(object_id), self.has_view_permission(request)
        if (
            may_view
            and key.startswith("~")
            and any(allowed.name == action for allowed in self.allowed_actions(request))
        ):
            if request.method != "POST":
                return HttpResponseRedirect(self._page_of(key))
            object_id = self._row_of(key)
        return super().action_view(request, object_id, action)

    def _row_of(self, key: str) -> str:
        """Return the key of a row, made if necessary; the key unchanged if it can't be made."""
        if not (key.startswith("~") and _is_name(key[1:])):
            return key
        rows = QueueQuerySet(Queue, using=queue_database())
        return str(rows.named(key[1:]).get().pk)

    def _page_of(self, key: str) -> str:
        return reverse(f"{self.admin_site.name}:horsies_django_queue_change", args=[quote(key)])

    # The page.

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the load, and show one save button only."""
        from ...ops.metrics.snapshot import collect
        from ..latency import latency_charts
        from ..periods import describe_lag

        context = context | {"show_save_and_add_another": False, "show_save_and_continue": False}
        if (queue := kwargs.get("obj")) is not None:
            options = _options()
            snapshot = collect(options, with_trends=True, also=queue.name)
            metrics = next(metrics for metrics in snapshot.queues if metrics.name == queue.name)
            _with_metrics(queue, metrics, snapshot)
            threshold = metrics.status.latency_warning
            limit, minute = threshold.total_seconds() if threshold else None, int(snapshot.second // 60)
            context = context | {
                "summary": self._summary(request, queue),
                "charts": latency_charts(options.database, queue.name, minute, limit),
                "counted_until": describe_lag(snapshot.rollup_lag, snapshot.second),
            }
        return super().render_change_form(request, context, *args, **kwargs)

    def _summary(self, request: HttpRequest, queue: Any) -> list[tuple[Any, Any]]:
        links = Links(self.admin_site, request)
        workers = ngettext("%d worker", "%d workers", queue.workers)
        return [
            (_("state"), queue_state(queue)),
            (_("limits"), _rules(queue)),
            (_("due"), _tasks_of(links, queue, "due", _due(queue))),
            (_("latency"), _latency(queue)),
            (_("blocked"), _tasks_of(links, queue, "blocked", _blocked(queue))),
            (_("in progress"), _tasks_of(links, queue, "active", _held(queue))),
            (_("scheduled"), _tasks_of(links, queue, "scheduled", _scheduled(queue))),
            (_("finished in the last hour"), _hour(queue)),
            (_("served by"), fill_numbers(workers, queue.workers) if queue.workers else gettext("no worker")),
        ]

    shown_state = _live("shown_state", _("state"), lambda queue: queue_state(queue))
    shown_due = _live("shown_due", _("due"), _due)
    shown_oldest = _live("shown_oldest", _("latency"), _latency)
    shown_blocked = _live("shown_blocked", _("blocked"), _blocked)
    shown_held = _live("shown_held", _("in progress"), _held)
    shown_scheduled = _live("shown_scheduled", _("scheduled"), _scheduled)
    shown_hour = _live("shown_hour", _("last hour"), _hour)
    shown_workers = _live("shown_workers", _("workers"), lambda queue: format_number(queue.workers))
    shown_rules = _live("shown_rules", _("limits"), _rules)


def _tasks_of(links: Links, queue: Queue, state: str, words: SafeString | str) -> SafeString | str:
    """Return a number as a link to a queue's tasks."""
    return links.to_list(Task, words, queue_name=queue.name, state=state, kind="all")


def _help_text(name: str) -> str:
    field: Any = Queue._meta.get_field(name)
    return str(field.help_text)


def _defaults(queue: Queue | None) -> dict[str, str]:
    """Return by field the text that says what applies if it is empty."""
    if queue is None:
        return dict.fromkeys(COLUMNS, gettext("Empty: default (settings)."))
    texts = {name: gettext("Default: %s (settings).") % value for name, value in _default_values(queue.name).items()}
    return dict.fromkeys(COLUMNS, gettext("Default: as set by the task or the settings.")) | texts


def _default_values(queue: str) -> dict[str, str]:
    """Return by field the value in force if it is empty, for the fields whose default is the same for all tasks."""
    from ...ops.queue_status import queue_options

    policy = QueuePolicy.of(queue_options(queue, queue_database()))
    values: dict[str, Any] = {
        "max_concurrency": policy.max_concurrency,
        "rate_limit": policy.rate,
        "priority": policy.priority,
        "weight": policy.weight,
    }
    no_limit = gettext("no limit")
    return {name: no_limit if value is None else str(value) for name, value in values.items()}


def _is_name(text: str) -> bool:
    """Return whether the text is a valid queue name."""
    return 0 < len(text) <= NAME_LENGTH and "\0" not in text
