"""URLs for monitoring and for events of tasks: ``path("horsies/", include("horsies_django.urls"))``."""

from django.urls import path

from .extras import views
from .extras.events import task_events

__all__ = ["app_name", "urlpatterns"]

app_name = "horsies"

urlpatterns = [
    path("metrics", views.metrics, name="metrics"),
    path("health/live", views.live, name="live"),
    path("health/ready", views.ready, name="ready"),
    path("tasks/<uuid:task_id>/events/", task_events, name="task-events"),
]
