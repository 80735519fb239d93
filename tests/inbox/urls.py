"""Inboxes of several senders."""

from __future__ import annotations

import json

from django.http import HttpRequest
from django.urls import path

from horsies_django.inbox import github_signature, hmac_signature, inbox, stripe_signature
from tests.inbox.jobs import on_details, on_event

SECRET = "whsec_1"


def key_in_body(request: HttpRequest) -> str:
    return str(json.loads(request.body)["id"])


def key_in_header(request: HttpRequest) -> str:
    return request.headers["X-GitHub-Delivery"]


urlpatterns = [
    path("open/", inbox(on_event, key=key_in_body)),
    path("small/", inbox(on_event, key=key_in_body, max_bytes=100)),
    path("details/", inbox(on_details, key=key_in_header)),
    path("hmac/", inbox(on_event, key=key_in_body, verify=hmac_signature(SECRET, header="X-Signature"))),
    path("github/", inbox(on_event, key=key_in_header, verify=github_signature(SECRET))),
    path("stripe/", inbox(on_event, key=key_in_body, verify=stripe_signature(SECRET))),
]
