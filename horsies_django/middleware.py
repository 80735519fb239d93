"""Middleware for tasks: the base class, and two that pass on the sender's language and time zone."""

from .core.middleware import ContextMiddleware, LocaleMiddleware, TaskCall, TimezoneMiddleware

__all__ = ["ContextMiddleware", "LocaleMiddleware", "TaskCall", "TimezoneMiddleware"]
