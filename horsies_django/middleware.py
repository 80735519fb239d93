"""Middleware for tasks: the base class, and two that pass on the sender's language and time zone."""

from .core.middleware import (
    AttemptOutcome,
    ContextMiddleware,
    LocaleMiddleware,
    TaskCall,
    TaskSend,
    TimezoneMiddleware,
)

__all__ = ["AttemptOutcome", "ContextMiddleware", "LocaleMiddleware", "TaskCall", "TaskSend", "TimezoneMiddleware"]
