"""A site of one's own, deep below a prefix, beside Django's."""

from django.contrib import admin
from django.urls import include, path

from horsies_django.admin import register

ops = admin.AdminSite(name="ops")
register(ops)

urlpatterns = [
    path("admin/", admin.site.urls),
    path("deep/below/", include([path("ops/", ops.urls)])),
]
