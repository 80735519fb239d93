"""A site with no page."""

urlpatterns = []
