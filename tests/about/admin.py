"""The shop's own admin: it imports the mixin like a project's, before or after the queue's pages are registered."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest

from horsies_django.admin import TasksInline
from tests.about.models import Customer, Invoice, Order, Place, Restaurant, RushOrder, Ticket

for model in (Order, Place, Restaurant, Ticket):
    admin.site.register(model, type(f"{model.__name__}Admin", (TasksInline, admin.ModelAdmin), {}))


@admin.register(Customer)
class CustomerAdmin(TasksInline, admin.ModelAdmin):
    """It has fieldsets."""

    fieldsets: ClassVar[Any] = (("Who", {"fields": ["name"]}),)


@admin.register(Invoice)
class InvoiceAdmin(TasksInline, admin.ModelAdmin):
    """It has ``fields``, and its own methods replace Django's."""

    fields = ("order", "shown_order")

    def shown_order(self, invoice: Invoice) -> str:
        """The number of the order."""
        return f"Order no. {invoice.order_id}"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Make everything read-only, without Django's own."""
        return ["order", "shown_order"]


@admin.register(RushOrder)
class RushOrderAdmin(TasksInline, admin.ModelAdmin):
    """It has read-only fields, and no ``fields``."""

    readonly_fields = ("runs",)
