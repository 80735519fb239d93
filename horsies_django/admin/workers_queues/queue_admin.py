"""Queues: how deep each is, who serves it, and pausing it. One without a row runs freely, and is shown all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import JSONField, Model, QuerySet
from django.forms import ModelForm, Textarea
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...core.durations import format_duration
from ...core.operations import acting_as
from ...core.queue_policy import COLUMNS
from ...models import Queue, Task
from ...models.queue import QueueQuerySet
from ..actions.admin_action import AdminAction
from ..base import is_read_only, queue_database
from ..links import Links
from ..live_columns import LiveAdmin, live_column
from ..schedules.form import JSON_BOX
from ..workflows.event_form import JSONPayloadField
from .load import attach_loads, known_queues, queue_loads, unsaved_queue

if TYPE_CHECKING:
    AnyModelForm = ModelForm[Queue]
else:  # generic in the type stubs only
    AnyModelForm = ModelForm

NAME_LENGTH: Final[int] = Queue._meta.get_field("name").max_length or 0

PAUSE: Final = AdminAction(
    name="pause",
    label=_("Pause"),
    button=lambda count, shown: ngettext("Pause %s queue", "Pause %s queues", count) % shown,
    list_label=_("Pause selected queues"),
    act=QueueQuerySet.pause,
    message=lambda count: ngettext("%d queue is paused.", "%d queues are paused.", count) % count,
    applies_to=lambda queue: not queue.paused,
    logged_columns=("paused",),
)

RESUME: Final = AdminAction(
    name="resume",
    label=_("Resume"),
    button=lambda count, shown: ngettext("Resume %s queue", "Resume %s queues", count) % shown,
    list_label=_("Resume selected queues"),
    act=QueueQuerySet.resume,
    message=lambda count: ngettext("%d queue goes on.", "%d queues go on.", count) % count,
    applies_to=lambda queue: queue.paused,
    logged_columns=("paused",),
)


class QueueList(ChangeList):
    """Every queue that is known, on one page."""

    def get_results(self, request: HttpRequest) -> None:
        """Put those without a row beside the others, and the load of all."""
        super().get_results(request)
        known = known_queues(self.queryset, queue_database())
        self.result_list = known
        self.result_count = self.full_result_count = len(known)
        self.multi_page = self.can_show_all = False


class QueueForm(AnyModelForm):
    """Names a queue that nothing else knows of."""

    def validate_unique(self) -> None:
        """Ask the queue's own database, where Django would ask the one that its routers name."""
        name = self.cleaned_data.get("name")
        if name is not None and Queue.objects.using(queue_database()).filter(name=name).exists():
            self.add_error("name", self.instance.unique_error_message(Queue, ("name",)))


class QueueAdmin(LiveAdmin):
    """Shows, pauses and resumes queues, and keeps their limits."""

    admin_actions = (PAUSE, RESUME)
    form = QueueForm
    formfield_overrides = {JSONField: {"form_class": JSONPayloadField, "widget": Textarea(attrs=JSON_BOX)}}
    list_display = (
        "name",
        "shown_state",
        "shown_due",
        "shown_oldest",
        "shown_held",
        "shown_scheduled",
        "shown_hour",
        "shown_workers",
        "shown_rules",
    )
    sortable_by = ()
    ordering = ("name",)
    change_form_template = "admin/horsies_django/queue_change_form.html"

    # Who may do what. Adding a row that is paused, and deleting one that is, would be pausing and resuming.

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Who has that right may name a queue that nothing else knows of yet."""
        return self._has_right(request, "add")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Who has that right may edit what holds for it."""
        return self._has_right(request, "change")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Who has that right may delete what is said of a queue, one by one, but not so resume it."""
        may_go = isinstance(obj, Queue) and not obj._state.adding and not obj.paused
        return self._has_right(request, "delete") and may_go

    def _has_right(self, request: HttpRequest, name: str) -> bool:
        return not is_read_only() and request.user.has_perm(f"horsies_django.{name}_queue")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return what the form has: a queue is paused by its button, so that no old page of somebody resumes it."""
        is_fresh = obj is None and PAUSE.is_allowed(request, self.model)
        return ["name", *(["paused"] if is_fresh else []), *COLUMNS]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """A queue keeps its name: tasks know it by that."""
        return [] if obj is None else ["name"]

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        """Write where the workers read, wherever the routers would send it, and no more than was edited."""
        if change:  # somebody may have deleted the row since
            edited = {name: getattr(obj, name) for name in COLUMNS if name in form.changed_data}
            if "retention" in edited:  # a retention of None would take the other column with it
                edited["retention_by_state"] = obj.retention_by_state
            with acting_as(request.user.get_username(), "admin"):
                QueueQuerySet(Queue, using=queue_database()).named(obj.name).set(**edited)
        else:
            obj.save(using=queue_database())

    def delete_model(self, request: HttpRequest, obj: Queue) -> None:
        """Delete it unless somebody has paused it since the page was opened."""
        if not Queue.objects.using(queue_database()).filter(pk=obj.pk, paused=False).delete()[0]:
            raise PermissionDenied

    # Queues without a row: it is made when something is first said of them.

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that has them all."""
        return QueueList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Find a queue by its row, or by its name after a ``~``."""
        if not object_id.startswith("~"):
            return super().get_object(request, object_id, from_field)
        if not _is_name(name := object_id[1:]):
            return None
        return self.get_queryset(request).filter(name=name).first() or unsaved_queue(name)

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Act on those that have no row yet, too."""
        keys = request.POST.getlist(ACTION_CHECKBOX_NAME)
        is_allowed = any(known.name == request.POST.get("action") for known in self.allowed_actions(request))
        if is_allowed and any(key.startswith("~") for key in keys):
            posted = request.POST.copy()
            posted.setlist(ACTION_CHECKBOX_NAME, [self._row_of(key) for key in keys])
            request.POST = posted  # type: ignore[assignment]  # verbs are for rows
        return super().response_action(request, queryset, *args, **kwargs)

    def changeform_view(self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """Edit what has no row yet, too."""
        if object_id is not None and request.method == "POST" and self.has_change_permission(request):
            object_id = quote(self._row_of(unquote(object_id)))
        return super().changeform_view(request, object_id, *args, **kwargs)

    def action_view(self, request: HttpRequest, object_id: str, action: str) -> HttpResponse:
        """Act on what has no row yet, too."""
        key, may_look = unquote(object_id), self.has_view_permission(request)
        if may_look and key.startswith("~") and any(known.name == action for known in self.allowed_actions(request)):
            if request.method != "POST":
                return HttpResponseRedirect(self._page_of(key))
            object_id = self._row_of(key)
        return super().action_view(request, object_id, action)

    def _row_of(self, key: str) -> str:
        """Return the primary key of a row, which is made if there is none; the key itself if there can be none."""
        if not (key.startswith("~") and _is_name(key[1:])):
            return key
        rows = QueueQuerySet(Queue, using=queue_database())
        return str(rows.named(key[1:]).get().pk)

    def _page_of(self, key: str) -> str:
        return reverse(f"{self.admin_site.name}:horsies_django_queue_change", args=[quote(key)])

    # The page.

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the load to the page, and leave one save button."""
        context = context | {"show_save_and_add_another": False, "show_save_and_continue": False}
        if (queue := kwargs.get("obj")) is not None:
            attach_loads([queue], queue_loads(queue_database(), queue.name), queue_database())
            context = context | {"summary": self._summary(request, queue)}
        return super().render_change_form(request, context, *args, **kwargs)

    def _summary(self, request: HttpRequest, queue: Any) -> list[tuple[Any, Any]]:
        load, links = queue.load, Links(self.admin_site, request)
        return [
            (_("state"), queue_state(queue)),
            (_("limits"), self.shown_rules(queue)),
            (_("due"), _tasks_of(links, queue, "due", load.shown_due)),
            (_("oldest has waited"), format_duration(load.depth.waits)),
            (_("held by workers"), _tasks_of(links, queue, "active", str(load.held))),
            (_("waiting for their time"), _tasks_of(links, queue, "scheduled", load.shown_scheduled)),
            (_("ended in the last hour"), load.shown_hour),
            (_("served by"), self._workers_of(load.workers)),
        ]

    def _workers_of(self, workers: tuple[str, ...]) -> str:
        count = len(workers)
        return ngettext("%d worker", "%d workers", count) % count if count else gettext("no worker")

    # Columns.

    @live_column
    @admin.display(description=_("state"))
    def shown_state(self, queue: Queue) -> SafeString:
        """Whether it is paused, by word."""
        return queue_state(queue)

    @live_column
    @admin.display(description=_("due"))
    def shown_due(self, queue: Any) -> str:
        """How many tasks could be claimed now."""
        return str(queue.load.shown_due)

    @live_column
    @admin.display(description=_("oldest has waited"))
    def shown_oldest(self, queue: Any) -> str:
        """For how long the oldest of them could have been."""
        return format_duration(queue.load.depth.waits)

    @live_column
    @admin.display(description=_("held"))
    def shown_held(self, queue: Any) -> str:
        """How many of its tasks workers hold."""
        return str(queue.load.held)

    @live_column
    @admin.display(description=_("for later"))
    def shown_scheduled(self, queue: Any) -> str:
        """How many wait for their time."""
        return str(queue.load.shown_scheduled)

    @live_column
    @admin.display(description=_("last hour"))
    def shown_hour(self, queue: Any) -> str:
        """How many attempts have ended."""
        return str(queue.load.shown_hour)

    @live_column
    @admin.display(description=_("workers"))
    def shown_workers(self, queue: Any) -> str:
        """How many serve it."""
        return str(len(queue.load.workers))

    @live_column
    @admin.display(description=_("limits"))
    def shown_rules(self, queue: Any) -> str:
        """What is not as for any queue, in words, with how much of its limits is used."""
        return "; ".join(queue.load.status.descriptions) or "-"


def _tasks_of(links: Links, queue: Queue, state: str, words: str) -> SafeString | str:
    """Return a number as a link to the tasks of a queue that it counts."""
    return links.to_list(Task, words, queue_name=queue.name, state=state, kind="all")


def _is_name(text: str) -> bool:
    """Whether a queue can be called that."""
    return 0 < len(text) <= NAME_LENGTH and "\0" not in text


def queue_state(queue: Queue) -> SafeString:
    """Return whether it is paused, by word."""
    if queue.paused:
        return format_html('<span class="horsies-paused">{}</span>', _("paused"))
    return format_html('<span class="horsies-alive">{}</span>', _("open"))
