from tests.checks.lost_queues.tasks import fine, mistyped

urlpatterns: list[object] = []
assert fine
assert mistyped
