"""Apply an operator's actions from the list and from a row's page. GET changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import model_ngettext, quote, unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model, QuerySet
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.numbers import fill_numbers, format_lower_bound
from ...core.operations import acting_as
from ...ops.keyset.scopes import BATCH
from ..base import MAX_COUNTED, ReadOnlyAdmin
from .admin_action import AdminAction, log_action

#: Parameter that the confirmation page posts.
CONFIRMED = "confirmed"

#: Rows that are changed before their log entries are written, so a failure leaves at most that many unlogged.
LOG_BATCH = 50

#: Rows that the confirmation page lists.
MAX_SHOWN: Final = 20


class Button(NamedTuple):
    """A button on a row's page. It leads to a page that asks first, or else applies its action at once."""

    label: Any
    url: str
    is_link: bool


class ActionAdmin(ReadOnlyAdmin):
    """Read-only rows with an operator's actions.

    Each of ``admin_actions`` becomes an action of the list, a button on the page, and a permission method for Django.
    It does not use ``has_delete_permission``, which would enable Django's own delete page for any row.
    """

    admin_actions: ClassVar[tuple[AdminAction, ...]] = ()
    #: Batch size of an action on all matching rows; the time is checked between batches.
    batch: ClassVar[int] = BATCH
    change_form_template = "admin/horsies_django/action_change_form.html"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Turn ``admin_actions`` into Django admin actions."""
        super().__init_subclass__(**kwargs)
        cls.actions = [_list_action(action) for action in cls.admin_actions]
        for action in cls.admin_actions:
            setattr(cls, f"has_action_{action.permission_name}_permission", _permission_check(action))

    def get_urls(self) -> list[URLPattern]:
        """Add a URL below the row's for each action."""
        view = self.admin_site.admin_view(self.action_view)
        return [path("<path:object_id>/do/<slug:action>/", view, name=self.page_name("do")), *super().get_urls()]

    def allowed_actions(self, request: HttpRequest) -> list[AdminAction]:
        """Return the actions that this user may use."""
        return [action for action in self.admin_actions if action.is_allowed(request, self.model)]

    # Actions on a row's page.

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the buttons."""
        buttons = self.buttons_of(request, kwargs.get("obj"))
        return super().render_change_form(request, context | {"buttons": buttons}, *args, **kwargs)

    def buttons_of(self, request: HttpRequest, row: Any) -> list[Button]:
        """Return the buttons of a row's page: the actions that apply to it."""
        if row is None:
            return []
        actions = (action for action in self.allowed_actions(request) if action.applies_to(row))
        return [Button(action.label, self.action_url(row.pk, action), action.needs_confirmation) for action in actions]

    def action_view(self, request: HttpRequest, object_id: str, action: str) -> HttpResponse:
        """Apply the action to one row, or ask for confirmation first."""
        row = self.get_object(request, unquote(object_id))
        chosen = next((each for each in self.admin_actions if each.name == action), None)
        if chosen is None:
            raise Http404(_("There is no action %(name)s.") % {"name": action})
        if not (self.has_view_permission(request, row) and chosen.is_allowed(request, self.model)):
            raise PermissionDenied
        if row is None:
            return self.not_found(request, object_id)
        rows = self.get_queryset(request).filter(pk=row.pk)
        form = self._action_form(chosen, request, rows)
        if request.method != "POST" or not _is_confirmed(chosen, request, form):
            return self.confirmation_page(request, chosen, rows, form, {"back": self._return_url(row, rows)})
        self.apply_and_log(request, chosen, rows, form)
        return HttpResponseRedirect(self._return_url(row, rows))

    def _return_url(self, row: Any, rows: QuerySet[Any]) -> str:
        return self.page_url("change", quote(row.pk)) if rows.exists() else self.page_url("changelist")

    def action_url(self, key: Any, action: AdminAction) -> str:
        """Return the URL that applies an action to a row."""
        return self.page_url("do", quote(key), action.name)

    # Actions on the list.

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Drop selected keys that are not valid ids; Django would fail on them."""
        keys = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if (valid := [key for key in keys if _is_valid_key(self.model, key)]) != keys:
            posted = request.POST.copy()
            posted.setlist(ACTION_CHECKBOX_NAME, valid)
            request.POST = posted  # type: ignore[assignment]  # a mutable copy, which Django only reads
        return super().response_action(request, queryset, *args, **kwargs)

    def apply_to_selected(self, request: HttpRequest, rows: QuerySet[Any], action: AdminAction) -> HttpResponse | None:
        """Apply the action to the selected rows, or ask first. An action on all matching rows always asks."""
        form = self._action_form(action, request, rows)
        if request.POST.get("select_across", "0") not in ("", "0"):
            from ..lists.changelist import KeysetChangeList
            from .bulk_action import BulkAction

            changelist = self.get_changelist_instance(request)
            if isinstance(changelist, KeysetChangeList):
                return BulkAction(self, request, changelist, action, form).response()
        if not _is_confirmed(action, request, form):
            hidden = [(ACTION_CHECKBOX_NAME, key) for key in request.POST.getlist(ACTION_CHECKBOX_NAME)]
            hidden += [("action", action.name), ("select_across", "0"), ("index", "0")]
            more = {"hidden": hidden, "back": request.get_full_path()}
            return self.confirmation_page(request, action, rows, form, more)
        self.apply_and_log(request, action, rows, form)
        return None

    # Shared by both.

    def confirmation_page(
        self, request: HttpRequest, action: AdminAction, rows: QuerySet[Any], form: Form | None, more: Mapping[str, Any]
    ) -> HttpResponse:
        """Render the page that asks for confirmation and for the action's form."""
        counted = more.get("count")
        count = rows.order_by()[:MAX_COUNTED].count() if counted is None else counted
        is_bounded = counted is None and count == MAX_COUNTED
        in_words = f"{format_lower_bound(count, is_bounded)} {model_ngettext(self.opts, count)}"
        only = rows.first() if count == 1 else None
        context: dict[str, Any] = {
            "action": action,
            "form": form,
            "rows": rows[:MAX_SHOWN],
            "count": count,
            "more": format_lower_bound(max(0, count - MAX_SHOWN), is_bounded),
            "is_more": count > MAX_SHOWN,
            "title": action.title(in_words if only is None else f"{self.opts.verbose_name} {only}"),
            "button": action.title(in_words).rstrip(" ?\u00a0\u202f"),
            "extent": action.extent(None if "tally" in more else rows),
            **more,
        }
        return self.render(request, "action_confirmation", context)

    def apply_and_log(self, request: HttpRequest, action: AdminAction, rows: QuerySet[Any], form: Form | None) -> None:
        """Apply the action, log it, and show a message."""
        keys, values = list(rows.order_by("pk").values_list("pk", flat=True)), form.cleaned_data if form else {}
        done, parts = 0, 0
        for first in range(0, len(keys), LOG_BATCH):
            with acting_as(request.user.get_username(), "admin"):
                count, more, logged = action.apply(rows.filter(pk__in=keys[first : first + LOG_BATCH]), values)
            done, parts = done + count, parts + more
            for message, changed in logged.items():
                LogEntry.objects.log_actions(request.user.pk, changed, action.flag, message)  # type: ignore[arg-type]  # the stubs ask for a queryset, Django takes any list
        left = len(keys) - done
        log_action(request, self.model, action.log_label(values), done, left)
        self.show_outcome(request, action.report(done, parts), left, action.skipped_reason(rows) if left > 0 else "")

    def show_outcome(self, request: HttpRequest, done: str, left: int, why: str = "") -> None:
        """Show how many rows were changed and how many were skipped, with the reason if known."""
        if left > 0:
            left_alone = ngettext(
                "%d was skipped: its state or its workflow does not allow the action.",
                "%d were skipped: their state or their workflow does not allow the action.",
                left,
            )
            done = f"{done} {fill_numbers(left_alone, left)} {why}".rstrip()
        self.message_user(request, done, messages.WARNING if left > 0 else messages.SUCCESS)

    def _action_form(self, action: AdminAction, request: HttpRequest, rows: QuerySet[Any]) -> Form | None:
        if action.form is None:
            return None
        return action.form(request.POST) if CONFIRMED in request.POST else action.form()


def _is_confirmed(action: AdminAction, request: HttpRequest, form: Form | None) -> bool:
    if not action.needs_confirmation:
        return True
    return CONFIRMED in request.POST and (form is None or form.is_valid())


def _is_valid_key(model: type[Model], key: str) -> bool:
    field: Any = model._meta.pk
    try:
        field.clean(key, None)
    except ValidationError:
        return False
    return "\0" not in key


def _permission_check(action: AdminAction) -> Any:
    def has_permission(modeladmin: ActionAdmin, request: HttpRequest) -> bool:
        return action.is_allowed(request, modeladmin.model)

    return has_permission


def _list_action(action: AdminAction) -> Any:
    @admin.action(permissions=[f"action_{action.permission_name}"], description=action.list_label)
    def act(modeladmin: ActionAdmin, request: HttpRequest, rows: QuerySet[Any]) -> HttpResponse | None:
        return modeladmin.apply_to_selected(request, rows, action)

    act.__name__ = action.name
    return act
