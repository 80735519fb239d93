"""Middleware for task bodies: the base class, and two that carry the sender's language and time zone."""

from .core.middleware import ContextMiddleware, LocaleMiddleware, TaskCall, TimezoneMiddleware

__all__ = ["ContextMiddleware", "LocaleMiddleware", "TaskCall", "TimezoneMiddleware"]
