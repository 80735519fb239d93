"""Middleware: headers are stored with each task, and a context manager around its body uses them."""

from contextlib import contextmanager
from contextvars import ContextVar

import project
from django.utils import translation

project.setup(middleware=["horsies_django.middleware.LocaleMiddleware", "middleware.TenantMiddleware"])

from horsies_django import task
from horsies_django.middleware import ContextMiddleware
from horsies_django.testing import drain

tenant = ContextVar("tenant", default=None)


class TenantMiddleware(ContextMiddleware):
    reserved_headers = ("tenant",)

    @contextmanager
    def within(self, call):  # around each body
        token = tenant.set(call.metadata.get("tenant"))
        try:
            yield
        finally:
            print(f"{call.task.name} ends")
            tenant.reset(token)

    @staticmethod
    def headers():  # at each send
        return {"tenant": tenant.get()}


@task
def bill(order):
    print(f"order {order}: tenant {tenant.get()}, language {translation.get_language()}")


tenant.set("acme")
with translation.override("de"):
    bill.send(3)
tenant.set(None)

drain()

# Output:
# order 3: tenant acme, language de
# bill ends
