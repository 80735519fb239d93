"""The latest tasks about a row, on its page in the project's own admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from ..models import Task
from .base import AnyModelAdmin, style_sheets
from .links import Links, can_view


class TasksInline(AnyModelAdmin):
    """Shows the latest tasks about a row on its page, below the row's fields, to users who may view tasks.

    ::

        @admin.register(Order)
        class OrderAdmin(TasksInline, admin.ModelAdmin):
            list_display = ["number", "customer"]

    The page takes one more statement, and needs no template of its own.
    """

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Add the tasks of a saved row as a read-only field in a fieldset of its own."""
        row = kwargs.get("obj")
        if row is not None and can_view(self.admin_site, request, Task):
            self._add_tasks(context, row, Links(self.admin_site, request))
        response: HttpResponse = super().render_change_form(request, context, *args, **kwargs)
        return response

    def _add_tasks(self, context: Any, row: Model, links: Links) -> None:
        """Add the field to the page alone: no form and no ``get_fieldsets()`` of the project meets it."""
        from .tasks.row_tasks import tasks_table

        title, table = capfirst(Task._meta.verbose_name_plural), tasks_table(row, links)

        @admin.display(description=title)
        def horsies_tasks(_row: Model) -> SafeString:
            return table

        page = context["adminform"]
        page.fieldsets = [*page.fieldsets, (title, {"fields": [horsies_tasks]})]
        page.readonly_fields = [*page.readonly_fields, horsies_tasks]
        context["media"] += style_sheets("lists", "row_tasks")
