from tests.settings_and_checks.lost_queues.tasks import fine, mistyped

urlpatterns: list[object] = []
assert fine
assert mistyped
