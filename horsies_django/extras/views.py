"""The views of :mod:`horsies_django.urls`: metrics and health checks, which ``OPTIONS["metrics"]`` opens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import TypeAlias

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed

from ..core.backends import all_backends
from ..core.options import Options
from ..db.connection import commits_by_itself
from ..models.check_migrated import check_schema
from .access import CHALLENGE, is_open

logger = logging.getLogger("horsies_django.monitoring")

#: The permission that a user of the staff needs.
PERMISSION = "horsies_django.view_task"

_View: TypeAlias = Callable[[HttpRequest], HttpResponse]


def _endpoint(name: str) -> Callable[[Callable[[HttpRequest, Options], HttpResponse]], _View]:
    """Make a view for GET and HEAD that needs the token, or a user of the staff with the permission.

    It opens no transaction and ignores LoginRequiredMiddleware, whose redirect no monitoring system follows.
    """

    def decorate(body: Callable[[HttpRequest, Options], HttpResponse]) -> _View:
        @commits_by_itself
        @login_not_required
        @wraps(body)
        def view(request: HttpRequest) -> HttpResponse:
            response = _respond(request)
            response["Cache-Control"] = "no-store"
            return response

        def _respond(request: HttpRequest) -> HttpResponse:
            if request.method not in ("GET", "HEAD"):
                return HttpResponseNotAllowed(["GET", "HEAD"])
            options = _first_options()
            is_allowed = is_open(options.metrics, name, request.headers.get("Authorization", ""))
            refused = None if is_allowed else refusal(request, "A token is needed: see OPTIONS['metrics'].")
            return body(request, options) if refused is None else refused

        return view

    return decorate


def _first_options() -> Options:
    """Return the options of the first backend of ours. Raises ImproperlyConfigured."""
    if not (backends := all_backends()):
        raise ImproperlyConfigured("TASKS has no HorsiesBackend, so there is nothing to monitor.")
    return backends[0].config


def refusal(request: HttpRequest, needed: str) -> HttpResponse | None:
    """Return the response to a user without permission, or to a request without a user; None if all is well.

    ``needed`` says what a request without a user needs.
    """
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        response = text_response(needed, 401)
        response["WWW-Authenticate"] = CHALLENGE
        return response
    if user.is_active and user.is_staff and user.has_perm(PERMISSION):
        return None
    return text_response(f"Only staff with the permission {PERMISSION} may read this.", 403)


def text_response(line: str, status: int = 200) -> HttpResponse:
    """Return a response of one line."""
    return HttpResponse(f"{line}\n", status=status, content_type="text/plain; charset=utf-8")


def unready_reason(database: str) -> str | None:
    """Return in one line why the queue can't be used, None if it can. The details of an error are only logged."""
    try:
        check_schema(database)
    except ImproperlyConfigured as error:
        return str(error).partition("\n")[0]
    except Error as error:
        logger.warning("database not ready alias=%s error=%s", database, error)
        connections[database].close_if_unusable_or_obsolete()
        return f"Database {database!r} does not answer: {type(error).__name__}."
    return None


@_endpoint("metrics")
def metrics(request: HttpRequest, options: Options) -> HttpResponse:
    """Respond with the metrics of the whole queue, in the format that the Accept header asks for."""
    try:
        from .prometheus import render
        from .prometheus.queue_collector import QueueCollector
    except ImproperlyConfigured as error:
        return text_response(str(error), 501)
    try:
        content, content_type = render(QueueCollector(options), request.headers.get("Accept", ""))
    except Error as error:
        logger.warning("metrics not collected database=%s error=%s", options.database, error)
        return text_response(f"Database {options.database!r} does not answer: {type(error).__name__}.", 503)
    return HttpResponse(content, content_type=content_type)


@_endpoint("health/live")
def live(request: HttpRequest, options: Options) -> HttpResponse:
    """Respond "ok": this process answers. Runs no query if the endpoint is public or the token is given."""
    return text_response("ok")


@_endpoint("health/ready")
def ready(request: HttpRequest, options: Options) -> HttpResponse:
    """Respond "ok" if the queue's database answers and is migrated, else 503 with the reason in one line."""
    reason = unready_reason(options.database)
    return text_response("ok") if reason is None else text_response(reason, 503)
