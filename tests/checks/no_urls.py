"""A site without pages."""

urlpatterns = []
