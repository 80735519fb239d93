"""Run an ended task again as a new task: the button, the page with the form, and the links between both tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...core.compat import InvalidTask
from ...core.exceptions import PayloadMismatch, UniqueConflict
from ...core.operations import acting_as
from ...enqueue.handle import TaskHandle
from ...models import Task
from ...ops.inspector.run_again import (
    InvalidArguments,
    editable_call,
    run_again,
    why_not_editable,
    why_not_run_again,
)
from ..actions.action_admin import ActionAdmin
from ..actions.bulk_action import log_action
from ..base import is_read_only
from ..links import Links
from .run_again_form import RunAgainForm

#: The permission, and the name of the URL.
PERMISSION: Final = "horsies_django.rerun_task"
URL_NAME: Final = "horsies_django_task_run_again"

#: Maximum number of new tasks that a page links.
MAX_LINKED: Final = 5


@dataclass(frozen=True, slots=True)
class RunAgainButton:
    """The button beside those of the actions; it leads to the form."""

    label: Any = _("Run again…")
    needs_confirmation: bool = True


def may_run_again(request: HttpRequest) -> bool:
    """Return whether this user may run tasks again."""
    return not is_read_only() and request.user.has_perm(PERMISSION)


def linked_tasks(task: Task, links: Links) -> SafeString | str:
    """Return links to the tasks that are runs of this one again, the newest first. Takes one statement."""
    rows = Task.objects.using(task._state.db).filter(rerun_of_id=task.pk).order_by("-rerun_of_id", "-id")
    keys = list(rows.values_list("pk", flat=True)[: MAX_LINKED + 1])
    shown = format_html_join(", ", "{}", ((links.to(Task, key),) for key in keys[:MAX_LINKED]))
    return format_html("{}, …", shown) if len(keys) > MAX_LINKED else shown


class RunAgainAdmin(ActionAdmin):
    """Adds the page that runs a task again."""

    def get_urls(self) -> list[URLPattern]:
        """Add the URL of the form below the task's."""
        view = self.admin_site.admin_view(self.run_again_view)
        return [path("<path:object_id>/run-again/", view, name=URL_NAME), *super().get_urls()]

    def buttons_of(self, request: HttpRequest, row: Any) -> list[tuple[Any, str]]:
        """Add the button after *Retry*, if the task can be run again."""
        buttons = super().buttons_of(request, row)
        if row is not None and may_run_again(request) and not why_not_run_again(row):
            after_retry = 1 if buttons and buttons[0][0].name == "retry" else 0
            buttons.insert(after_retry, (RunAgainButton(), self._run_again_url(row)))
        return buttons

    def run_again_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the form, or send the new task and open its page."""
        task = self.get_object(request, unquote(object_id))
        if not (self.has_view_permission(request, task) and may_run_again(request)):
            raise PermissionDenied
        if task is None:
            return self.not_found(request, object_id)
        if problem := why_not_run_again(task) or why_not_editable(task):
            if request.method == "POST":
                self._log(request, task, gettext("Run again was refused: %s") % problem, done=0)
            self.message_user(request, gettext("This task can't be run again. %s") % problem, messages.ERROR)
            return HttpResponseRedirect(self._page_url(task.pk))
        call = editable_call(task)
        form = RunAgainForm(request.user.pk, task, call, request.POST if request.method == "POST" else None)
        if form.is_bound:
            if form.is_valid() and (handle := self._send(request, task, form)) is not None:
                self._log_and_tell(request, task, handle, is_own=handle.id == form.cleaned_data["task_id"])
                return HttpResponseRedirect(self._page_url(handle.id))
            fields = [str(form[name].label) for name in form.errors if name in form.fields]
            reasons = [*form.non_field_errors(), *fields]
            self._log(request, task, gettext("Run again was refused: %s") % ", ".join(map(str, reasons)), done=0)
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": task,
            "title": gettext("Run %(task)s again") % {"task": task.task_name},
            "media": self.media + form.media,
            "form": form,
            "hidden": call.hidden,
            "typed": task.typed_payload,
            "back": self._page_url(task.pk),
        }
        return TemplateResponse(request, "admin/horsies_django/task_run_again.html", context)

    def _send(self, request: HttpRequest, task: Task, form: forms.Form) -> TaskHandle[Any] | None:
        """Send the new task; add an error to the form, and return None, if the call is invalid."""
        try:
            with acting_as(request.user.get_username(), "admin"):
                return run_again(task, **form.cleaned_data)
        except InvalidArguments as error:
            form.add_error(error.where, str(error))
        except PayloadMismatch:
            form.add_error(None, gettext("This form has already been sent with other values. Open it again."))
        except (InvalidTask, UniqueConflict, TypeError, ValueError) as error:
            form.add_error(None, str(error))
        return None

    def _log_and_tell(self, request: HttpRequest, task: Task, handle: TaskHandle[Any], *, is_own: bool) -> None:
        old_link = format_html('<a href="{}">{}</a>', self._page_url(task.pk), task.pk)
        if not is_own:  # the key of a unique task belongs to another one
            self._log(request, task, gettext("Run again: no new task, %s has the same unique key.") % handle.id, done=0)
            text = gettext("No new task: this one has the same unique key. Run again from {}.")
            self.message_user(request, format_html(text, old_link), messages.WARNING)
        elif handle.replayed:
            self._log(request, task, gettext("Run again: the form had already been sent, as %s.") % handle.id, done=0)
        else:
            self._log(request, task, gettext("Run again as %s.") % handle.id, done=1)
            new = Task(pk=handle.id, task_name=task.task_name)
            self._log_row(request, new, ADDITION, gettext("Run again from %s.") % task.pk)
            text = gettext("This is a new task, run again from {}.")
            self.message_user(request, format_html(text, old_link), messages.SUCCESS)

    def _log(self, request: HttpRequest, task: Task, text: str, *, done: int) -> None:
        """Log what became of a request to run a task again."""
        self._log_row(request, task, CHANGE, text)
        log_action(request, self.model, gettext("Run again"), done, 1 - done)

    def _log_row(self, request: HttpRequest, task: Task, flag: int, text: str) -> None:
        LogEntry.objects.log_actions(request.user.pk, [task], flag, text)  # type: ignore[arg-type]  # the stubs ask for a queryset, Django takes any list

    def _page_url(self, key: Any) -> str:
        return reverse(f"{self.admin_site.name}:horsies_django_task_change", args=[quote(str(key))])

    def _run_again_url(self, task: Task) -> str:
        return reverse(f"{self.admin_site.name}:{URL_NAME}", args=[quote(str(task.pk))])
