"""The test project's URLs, those of the other apps, and an API that sends a task."""

from django.http import HttpRequest
from django.urls import include, path
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response

from testproject.urls import urlpatterns as project_urls
from tests.beside.tasks import write_note


def show_toolbar(request: HttpRequest) -> bool:
    return True


@api_view(["POST"])
def write(request: Request) -> Response:
    return Response({"id": write_note.enqueue(request.data["text"]).id})


urlpatterns = [
    *project_urls,
    path("__debug__/", include("debug_toolbar.urls")),
    path("silk/", include("silk.urls", namespace="silk")),
    path("cms/", include("wagtail.admin.urls")),
    path("write/", write),
]
