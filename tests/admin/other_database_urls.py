"""A custom admin site below a nested prefix, beside Django's default site."""

from django.contrib import admin
from django.urls import include, path

from horsies_django.admin import register

ops = admin.AdminSite(name="ops")
register(ops)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("deep/below/", include([path("ops/", ops.urls)])),
]
