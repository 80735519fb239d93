"""URLs of the site: the admin, and the endpoints for monitoring."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.generic import RedirectView


def empty_icon(request: HttpRequest) -> HttpResponse:
    """Respond to the browser's request for an icon, so that it logs no error."""
    return HttpResponse(status=204)


urlpatterns = [
    path("admin/", admin.site.urls),
    path("horsies/", include("horsies_django.urls")),
    path("favicon.ico", empty_icon),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
