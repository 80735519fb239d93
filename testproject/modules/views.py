"""A page that shows a report while a task writes it."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.contrib.admin.views.decorators import staff_member_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse

from horsies_django import TaskHandle

from .tasks import write_report


@staff_member_required
def report(request: HttpRequest) -> HttpResponse:
    """Start a report, or show that of this session as far as it is written."""
    if request.method == "POST":
        request.session["report"] = str(write_report.send().id)
        return redirect("report")
    context = {}
    if (key := request.session.get("report")) is not None:
        handle = TaskHandle[dict[str, int]](UUID(key))
        token = urlencode({"token": handle.stream_token()})
        context = {"id": handle.id, "events": f"{reverse('horsies:task-events', args=[handle.id])}?{token}"}
    return render(request, "modules/report.html", context)
