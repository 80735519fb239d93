"""The admin of workflows: the list, its search, and each workflow's page with its graph."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.fields.json import KT
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.numbers import format_duration, format_number
from ...core.workflow_status import WORKFLOW_TERMINAL_STATES, NodeKind, WorkflowStatus
from ...db.fields import indexes_in
from ...db.now import Now
from ...models import Task, Workflow, WorkflowTask
from ..actions.action_admin import ActionAdmin, Button
from ..actions.admin_action import AdminAction
from ..ages import relative_time
from ..formatting import COPY_CSS, COPY_JS, as_json, cell, short_id, time_column
from ..links import Links, schedule_link
from ..lists.search_admin import SearchAdmin
from ..lists.task_filters import ScheduleFilter
from ..lists.time_filters import SentFilter
from ..status_text import status_badge
from .filters import NameFilter, TreeFilter, WorkflowStateFilter
from .masking import mask_of_workflow
from .workflow_actions import RETRY, WORKFLOW_ACTIONS, EventForm, retry_of_node

if TYPE_CHECKING:
    from ..lists.search import Search
    from .search import WorkflowChangeList
    from .workflow_page import WorkflowPage

#: Columns that only the page shows.
_LARGE_COLUMNS = ("success_policy", "result", "error")


#: The columns of fields with another name.
_COLUMNS_OF: Final = {
    "shown_result": "result",
    "shown_output": "output_index",
    "shown_policy": "success_policy",
    "shown_kept_until": "kept_until",
}


#: Maximum number of the nodes of a success policy that are named.
_MAX_NAMED: Final = 500


class WorkflowAdmin(SearchAdmin, ActionAdmin):
    """Lists all workflows; lets permitted users pause, resume, cancel and retry them, and send them events."""

    list_display = ("shown_state", "shown_name", "shown_progress", "shown_run", "shown_id")
    list_display_links = ("shown_name",)
    change_list_template = "admin/horsies_django/two_line_change_list.html"
    list_filter = (WorkflowStateFilter, TreeFilter, SentFilter, NameFilter, ScheduleFilter)
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("name",)
    search_help_text = _(
        "A workflow id, the beginning of a name, the unique key of an unfinished workflow, "
        'args.order.id:42 or args.shop:"North side" for the input. Several terms must all match.'
    )
    change_form_template = "admin/horsies_django/workflow_change_form.html"
    admin_actions = WORKFLOW_ACTIONS
    batch = 20  # each takes the workflow's lock and updates its nodes
    fieldsets = (
        (_("Outcome"), {"fields": ("shown_result", "shown_output")}),
        (
            _("Definition"),
            {
                "fields": (
                    "id",
                    "definition_key",
                    "shown_policy",
                    "on_error",
                    "unique_key",
                    "queue_name",
                    "priority",
                    "backend",
                    "is_replaced",
                    "shown_kept_until",
                )
            },
        ),
    )

    shown_kept_until = time_column("kept_until", _("kept until"))

    class Media:
        css = {"all": [*COPY_CSS["all"], "horsies_django/lists.css", "horsies_django/workflow.css"]}
        js = ("horsies_django/live.js", "horsies_django/graph.js", *COPY_JS)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Return all fields."""
        return flatten_fieldsets(self.fieldsets)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Leave out fields without a value."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None:
            return fieldsets
        hidden = {name for name in self.get_readonly_fields(request) if _is_empty(obj, _COLUMNS_OF.get(name, name))}
        shown = [(title, [name for name in options["fields"] if name not in hidden]) for title, options in fieldsets]
        return [(title, {"fields": names}) for title, names in shown if names]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Defer the large columns until a page shows them; annotate the database's current time."""
        from ...ops.payload_view.contents import with_text_columns

        rows: QuerySet[Any] = super().get_queryset(request).annotate(now=Now()).defer(*_LARGE_COLUMNS)
        name = str(request.resolver_match.url_name) if request.resolver_match else ""
        if name.endswith("_changelist"):
            rows = rows.annotate(error_code=KT("error__error_code"))
        return with_text_columns(rows, *_LARGE_COLUMNS) if name.endswith("_change") else rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Decode the large columns for the page, as far as they can be decoded."""
        from ...ops.payload_view.contents import decode_text_columns

        workflow = super().get_object(request, object_id, from_field)
        if workflow is not None and "result_text" in workflow.__dict__:
            decode_text_columns(workflow, *_LARGE_COLUMNS)
        return workflow

    def parse_search(self, text: str, database: str) -> Search:
        """Parse ids, beginnings of names, unique keys, and terms for the inputs."""
        from .search import parse_search

        return parse_search(text, database)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[WorkflowChangeList]:
        """Return the change list that pages by keyset."""
        from .search import WorkflowChangeList

        return WorkflowChangeList

    def get_urls(self) -> list[URLPattern]:
        """Add a URL for retrying a node."""
        view = self.admin_site.admin_view(self.retry_node_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_retry_node"
        return [path("<path:object_id>/nodes/<int:index>/retry/", view, name=name), *super().get_urls()]

    # The page.

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the graph and the nodes."""
        workflow = kwargs.get("obj")
        if workflow is not None:
            page = self._page(request, workflow)
            may_retry = RETRY.is_allowed(request, self.model)
            context |= {
                "page": page,
                "live": page.is_live,
                "may_retry": may_retry,
                "node": page.node,
                "schedule": self._schedule(request, workflow),
            }
        return super().render_change_form(request, context, *args, **kwargs)

    def page_title(self, row: Any) -> str:
        """Return the workflow's name; its id is a field."""
        return str(row.name)

    def buttons_of(self, request: HttpRequest, row: Any) -> list[Button]:
        """Name a batch's failures as what they are: tasks."""
        buttons = super().buttons_of(request, row)
        if row is None or not row.is_batch:
            return buttons
        label = _("Retry failed tasks")
        return [button._replace(label=label) if button.label == RETRY.label else button for button in buttons]

    def _page(self, request: HttpRequest, workflow: Workflow) -> WorkflowPage:
        from .workflow_page import WorkflowPage  # only here, because it imports the graph

        sees_tasks = self.admin_site.is_registered(Task) and request.user.has_perm("horsies_django.view_task")
        return WorkflowPage(workflow, request.GET, self.admin_site.name, sees_tasks=sees_tasks)

    def _schedule(self, request: HttpRequest, workflow: Workflow) -> SafeString | str:
        """Return a link to the schedule that started the workflow, if any."""
        key = workflow.schedule_id
        return "" if key is None else schedule_link(key, workflow._state.db, Links(self.admin_site, request))

    def retry_node_view(self, request: HttpRequest, object_id: str, index: int) -> HttpResponse:
        """Retry one failed or skipped node, and the nodes that were skipped because of it. GET asks first."""
        from .nodes import node_rows

        row = self.get_object(request, unquote(object_id))
        if not (self.has_view_permission(request, row) and RETRY.is_allowed(request, self.model)):
            raise PermissionDenied
        if row is None:
            return self.not_found(request, object_id)
        node = node_rows(row).filter(task_index=index).only("node_id", "kind", "task_index", "workflow_id").first()
        if node is None:
            raise Http404(gettext("There is no such node."))
        action, rows = retry_of_node(node), self.get_queryset(request).filter(pk=row.pk)
        back = reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change", args=[row.pk])
        if request.method != "POST":
            return self.confirmation_page(request, action, rows, None, {"back": back})
        self.apply_and_log(request, action, rows, None)
        return HttpResponseRedirect(back)

    def _action_form(self, action: AdminAction, request: HttpRequest, rows: QuerySet[Any]) -> Form | None:
        """Suggest the events that the workflow's nodes wait for."""
        form = super()._action_form(action, request, rows)
        key = request.resolver_match.kwargs.get("object_id") if request.resolver_match else None
        if isinstance(form, EventForm) and key is not None:
            form.suggest(_awaited_events(self.get_object(request, unquote(key))))
        return form

    # Columns.

    @admin.display(description=_("state"))
    def shown_state(self, workflow: Any) -> SafeString:
        """The status, and the time that fits it: when the workflow ended, began or was sent."""
        moment = _ended_at(workflow) or workflow.started_at or workflow.sent_at
        return cell(status_badge(workflow), relative_time(moment, workflow.now))

    @admin.display(description=_("workflow"))
    def shown_name(self, workflow: Workflow) -> SafeString:
        """The name, marked if it is a batch or a subworkflow; the unique key."""
        name: SafeString | str = workflow.name
        if workflow.is_batch:
            name = format_html('{} <span class="quiet">{}</span>', workflow.name, gettext("batch"))
        elif workflow.depth:
            name = format_html('<span class="horsies-below">↳ {}</span>', workflow.name)
        return cell(name, workflow.unique_key or "")

    @admin.display(description=_("progress, error"))
    def shown_progress(self, workflow: Any) -> SafeString:
        """The share of nodes that have ended, as a bar and in words; the error's code."""
        code = getattr(workflow, "error_code", None)
        error = format_html('<span class="horsies-row-error"><strong>{}</strong></span>', code) if code else ""
        return cell(_progress(workflow), error)

    @admin.display(description=_("run time"))
    def shown_run(self, workflow: Any) -> SafeString:
        """The time from its start to its end, or to now."""
        ended = _ended_at(workflow)
        if not workflow.started_at or (ended is None and WorkflowStatus(workflow.status).is_terminal):
            return SafeString()
        took = format_duration((ended or workflow.now) - workflow.started_at)
        label = format_html('<span class="horsies-narrow">{} </span>', gettext("run time"))
        return cell(format_html("{}{}", label, took if ended else gettext("%s so far") % took))

    @admin.display(description=_("id, sent"))
    def shown_id(self, workflow: Any) -> SafeString:
        """The end of its id, with a button that copies it; when it was sent."""
        return cell(
            short_id(workflow.pk), format_html(gettext("sent {}"), relative_time(workflow.sent_at, workflow.now))
        )

    @admin.display(description=_("result"))
    def shown_result(self, workflow: Workflow) -> SafeString | str:
        """The result with sensitive values hidden."""
        return _masked(workflow, "result", workflow.result)

    @admin.display(description=_("output"))
    def shown_output(self, workflow: Workflow) -> SafeString | str:
        """The node whose value is the result."""
        index = workflow.output_index
        if index is None:
            return "-"
        return format_html('<a href="?node={}#node">{}</a>', index, gettext("node %d") % index)

    @admin.display(description=_("success policy"))
    def shown_policy(self, workflow: Workflow) -> SafeString | str:
        """The success policy as stored, with the names of its nodes in place of their positions."""
        from .nodes import node_rows

        policy = workflow.success_policy
        if not isinstance(policy, list) or not all(isinstance(case, dict) for case in policy):  # a damaged row
            return as_json(policy)
        places = sorted({place for case in policy for stored in case.values() for place in indexes_in(stored)})
        nodes = node_rows(workflow).filter(task_index__in=places[:_MAX_NAMED])
        names = dict(nodes.values_list("task_index", "node_id"))
        return as_json(
            [
                {key: [names.get(place, place) for place in indexes_in(stored)] for key, stored in case.items()}
                for case in policy
            ]
        )


def _is_empty(workflow: Workflow, column: str) -> bool:
    """Return whether a column has no value worth a field. A position of 0 is a value."""
    value = getattr(workflow, column)
    return value is None or (not value and column != "output_index")


def _ended_at(workflow: Workflow) -> datetime | None:
    moment: datetime | None = workflow.completed_at or workflow.cancelled_at
    return moment


def _progress(workflow: Workflow) -> SafeString | str:
    """Return the share of nodes that have ended, as a bar and in words."""
    total = workflow.node_count
    if not total:
        return ""
    done = max(0, total - workflow.open_count)
    words = gettext("%(done)s of %(total)s") % {"done": format_number(done), "total": format_number(total)}
    if workflow.status in WORKFLOW_TERMINAL_STATES - {WorkflowStatus.COMPLETED}:
        return words  # a full bar would look like success
    bar = '<progress class="horsies-progress" value="{}" max="{}" aria-label="{}"></progress> {}'
    return format_html(bar, done, total, words, words)


def _masked(workflow: Workflow, name: str, value: Any) -> SafeString | str:
    if value is None:
        return "-"
    mask = mask_of_workflow(workflow)
    return as_json(mask.apply(name, value), mask)


def _awaited_events(workflow: Workflow | None) -> list[str]:
    """Return the names of the events that nodes of a workflow wait for, now or later."""
    if workflow is None:
        return []
    nodes = WorkflowTask.objects.using(workflow._state.db).filter(workflow=workflow, kind=NodeKind.EVENT)
    names = nodes.filter(completed_at__isnull=True).order_by("task_index").values_list("event_name", flat=True)[:100]
    return list(dict.fromkeys(filter(None, names)))
