"""Run the check of everything in flight."""

from __future__ import annotations

from ...core.backends import backends_on, horsies_backend
from ...core.compat import DEFAULT_TASK_BACKEND_ALIAS
from .findings import DeployReport, Findings
from .nodes import NodeCheck
from .schedules import ScheduleCheck
from .tasks import TaskCheck


def check_deploy(backend: str | None = None) -> DeployReport:
    """Return what the code of this process would break: tasks, schedules and nodes of workflows in flight.

    Checks the rows of one backend, or all in the default backend's database. Raises ValueError if the alias is not a
    HorsiesBackend.
    """
    database = horsies_backend(backend or DEFAULT_TASK_BACKEND_ALIAS).config.database
    backends = backends_on(database)
    # Workers claim by queue, whatever the backend of a row. A backend without QUEUES serves any.
    queues = {queue for one in backends.values() for queue in one.queues}
    if not all(one.queues for one in backends.values()):
        queues = set()
    findings = Findings()
    TaskCheck(database, backend, queues, findings).run()
    NodeCheck(database, backend, queues, findings).run()
    for alias, one in backends.items():
        if backend in (None, alias):
            ScheduleCheck(alias, one, findings).run()
    return findings.report()
