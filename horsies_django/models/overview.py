"""The overview: a page of the admin. A model gives it a place in the index of any site."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from .task import Task


class Overview(Task):
    """No rows of its own: who may see tasks may see it."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
