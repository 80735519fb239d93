"""URLs of the site: the admin, the endpoints of the package, and a report that grows."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.generic import RedirectView

from testproject.modules.views import report


def empty_icon(request: HttpRequest) -> HttpResponse:
    """Respond to the browser's request for an icon, so that it logs no error."""
    return HttpResponse(status=204)


urlpatterns = [
    path("admin/", admin.site.urls),
    path("horsies/", include("horsies_django.urls")),
    path("report/", report, name="report"),
    path("favicon.ico", empty_icon),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
