"""The test project's settings, with the test tasks, on a database that other processes can open too."""

import os
from pathlib import Path

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.jobs", "tests.about"]
DEBUG = False
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # fast; users last for one test
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    folder = Path(DATABASES["default"]["NAME"]).parent
    DATABASES["default"]["TEST"] = {"NAME": str(folder / f"tests-{os.getpid()}.sqlite3")}

#: Modules that workers in other processes import.
MODULES = [
    "tests.about.jobs",
    "tests.admin.page_jobs",
    "tests.admin.step_jobs",
    "tests.worker.atomic.jobs",
    "tests.batches.jobs",
    "tests.chaos.jobs",
    "tests.chaos.shapes",
    "tests.contract.jobs",
    "tests.faults.jobs",
    "tests.enqueue.framework.jobs",
    "tests.enqueue.grouping.jobs",
    "tests.jobs.limited",
    "tests.worker.lifecycle.jobs",
    "tests.core.middleware.jobs",
    "tests.inbox.jobs",
    "tests.output.jobs",
    "tests.steps.cost_jobs",
    "tests.reaper.retention.jobs",
    "tests.steps.batch_jobs",
    "tests.steps.jobs",
    "tests.steps.event_jobs",
    "tests.steps.race_jobs",
    "tests.steps.restart_jobs",
    "tests.steps.gateway_jobs",
    "tests.steps.scripts",
    "tests.worker.execution.jobs",
    "tests.worker.execution.memory_jobs",
    "tests.schedules.jobs",
    "tests.enqueue.jobs",
    "tests.testing.jobs",
    "tests.worker.signals.jobs",
    "tests.models.state_machine.jobs",
    "tests.enqueue.dedupe.jobs",
    "tests.worker.unstorable_results",
    "tests.worker.open_transactions",
    "tests.workflows.bodies",
    "tests.workflows.jobs",
    "tests.workflows.race_jobs",
]
TASKS = {
    "default": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "QUEUES": os.environ.get("TEST_QUEUES", "").split(",") if os.environ.get("TEST_QUEUES") else [],
        "OPTIONS": {
            "modules": [name for name in os.environ.get("TEST_MODULES", ",".join(MODULES)).split(",") if name],
            "disable_undeclared_schedules_after": float(os.environ.get("TEST_UNDECLARED_AFTER", "600")),
            "about": {
                **{
                    f"about.{name}": {"on_delete": "cancel"}
                    for name in ("Order", "Place", "Ticket", "Seat", "Page", "Document")
                },
                "about.Invoice": {"on_delete": "keep"},
            },
            "recovery": {
                "claimed_stale_threshold_ms": int(os.environ.get("TEST_STALE_MS", "120000")),
                "running_stale_threshold_ms": int(os.environ.get("TEST_STALE_MS", "120000")),
                "claimer_heartbeat_interval_ms": int(os.environ.get("TEST_HEARTBEAT_MS", "30000")),
                "runner_heartbeat_interval_ms": int(os.environ.get("TEST_HEARTBEAT_MS", "30000")),
                "check_interval_ms": int(os.environ.get("TEST_CHECK_MS", "30000")),
            },
        },
    }
}
