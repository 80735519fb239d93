"""``inbox()``: a view that takes webhooks, each as one task, and the signatures of their senders."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from .core.option_parsers import DurationOption
from .core.parameters import parameters_of
from .core.serialization import clean_text
from .core.unique import Unique
from .db.connection import commits_by_itself
from .db.errors import is_outage
from .enqueue.task import HorsiesTask

__all__ = ["github_signature", "hmac_signature", "inbox", "stripe_signature"]

logger = logging.getLogger("horsies_django")

#: Headers with credentials, which no task gets.
_CREDENTIALS: Final = {"authorization", "cookie", "proxy-authorization"}

#: Returns whether a request comes from its sender.
Verify: TypeAlias = Callable[[HttpRequest], bool]


def inbox(
    task: HorsiesTask[..., Any],
    *,
    key: Callable[[HttpRequest], str],
    verify: Verify | None = None,
    max_bytes: int = 1_048_576,
    period: DurationOption = "7d",
) -> Callable[..., HttpResponse]:
    """Return a view that sends a call of ``task`` for each event that is POSTed to it.

    The task gets the body of the request as ``body``: its text, or base64 if it is no UTF-8. If it has parameters of
    these names, it also gets ``is_base64``, and ``headers``: a dict with names in lower case, without credentials.

    ``verify(request)`` returns whether the request comes from its sender: see :func:`hmac_signature`. Without it,
    anyone may send. ``key(request)`` returns the id of the event. For ``period``, from the first event on, the same key
    is the same task.

    The view answers 200 once the task is committed, 400 to a request that ``verify`` or ``key`` refuses or fails for,
    405 to other methods than POST, 413 to a body of more than ``max_bytes``, and 503 if the call can't be sent, for
    example because the database is away, so that the sender comes back.

    Raises ValueError for a bad number or period, and TypeError for a task that does not take ``body``.
    """
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE or max_bytes
    if type(max_bytes) is not int or not 0 < max_bytes <= limit:
        raise ValueError(f"max_bytes is {max_bytes!r}; allowed: 1 to DATA_UPLOAD_MAX_MEMORY_SIZE, which is {limit}.")
    parameters = parameters_of(task.func, task.takes_context)
    wanted = {"body"} | ({"headers", "is_base64"} & parameters.by_name)
    parameters.bind((), dict.fromkeys(wanted), task.task_name)
    Unique(key="event", period=period)  # raises for a bad one

    @csrf_exempt
    @login_not_required
    @commits_by_itself
    def view(request: HttpRequest, *_args: Any, **_kwargs: Any) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            body = request.body
        except RequestDataTooBig:
            return HttpResponse(status=413)
        except UnreadablePostError:  # the connection broke
            return HttpResponse(status=400)
        if len(body) > max_bytes:
            return HttpResponse(status=413)
        try:
            if (event := _event_of(request, key, verify)) is None:
                return HttpResponse(status=400)
            arguments = {name: value for name, value in _arguments(request, body).items() if name in wanted}
            digest = hashlib.sha256(f"{task.task_name} {event}".encode()).hexdigest()
            unique = Unique(key=f"inbox {digest}", period=period)
            task.with_options(unique=unique).send(**arguments)
        except Exception:
            logger.exception("event not sent task=%s", task.task_name)
            return HttpResponse(status=503)
        return HttpResponse(status=200)

    return view


def _event_of(request: HttpRequest, key: Callable[[HttpRequest], str], verify: Verify | None) -> str | None:
    """Return the id of an event; None for a request that ``verify`` or ``key`` refuses or fails for.

    Raises the error of a database that is away.
    """
    reason = "no valid signature"
    try:
        if verify is None or verify(request):
            event, reason = key(request), "no valid key"
            if isinstance(event, str) and event and event == clean_text(event):
                return event
    except Exception as error:
        if is_outage(error):
            raise
        reason = repr(error)
    logger.warning("event refused path=%s reason=%s", request.path, clean_text(reason))
    return None


def _arguments(request: HttpRequest, body: bytes) -> Mapping[str, Any]:
    headers = {name.lower(): value for name, value in request.headers.items()}
    arguments = {"headers": {name: value for name, value in headers.items() if name not in _CREDENTIALS}}
    try:
        if b"\0" not in body:  # PostgreSQL stores no text with one
            return {**arguments, "body": body.decode(), "is_base64": False}
    except UnicodeDecodeError:
        pass
    return {**arguments, "body": base64.b64encode(body).decode(), "is_base64": True}


def hmac_signature(secret: str | bytes, *, header: str, prefix: str = "", digest: str = "sha256") -> Verify:
    """Return a check of a header with the HMAC of the body, in hexadecimal digits after ``prefix``.

    ``digest`` is a name that :mod:`hashlib` knows. Raises ValueError for an empty secret or an unknown digest.
    """
    shared = _secret(secret)
    hmac.new(shared, b"", digest)  # raises for an unknown one

    def verify(request: HttpRequest) -> bool:
        expected = f"{prefix}{hmac.new(shared, request.body, digest).hexdigest()}"
        return hmac.compare_digest(expected.encode(), request.headers.get(header, "").encode())

    return verify


def github_signature(secret: str | bytes) -> Verify:
    """Return a check of the signature of GitHub's webhooks. Raises ValueError for an empty secret.

    See https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries.
    """
    return hmac_signature(secret, header="X-Hub-Signature-256", prefix="sha256=")


def stripe_signature(secret: str | bytes, *, tolerance: float = 300.0) -> Verify:
    """Return a check of the signature of Stripe's webhooks, and of their time: ``tolerance`` is in seconds.

    Raises ValueError for an empty secret. See https://docs.stripe.com/webhooks#verify-manually.
    """
    shared = _secret(secret)

    def verify(request: HttpRequest) -> bool:
        pairs = [item.strip().partition("=") for item in request.headers.get("Stripe-Signature", "").split(",")]
        sent_at = next((value for name, _, value in pairs if name == "t"), "")
        expected = hmac.new(shared, sent_at.encode() + b"." + request.body, hashlib.sha256).hexdigest().encode()
        signatures = [value.encode() for name, _, value in pairs if name == "v1"]
        is_signed = any(hmac.compare_digest(expected, signature) for signature in signatures)
        return is_signed and abs(time.time() - float(sent_at)) <= tolerance

    return verify


def _secret(secret: str | bytes) -> bytes:
    if not secret:
        raise ValueError("The secret is empty; allowed: the secret that the sender shows for this webhook.")
    return secret.encode() if isinstance(secret, str) else secret
