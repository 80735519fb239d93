"""The admin is the whole site."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.generic import RedirectView


def no_icon(request: HttpRequest) -> HttpResponse:
    """Browsers ask for one, and complain of none."""
    return HttpResponse(status=204)


urlpatterns = [
    path("admin/", admin.site.urls),
    path("favicon.ico", no_icon),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
