"""Check which rows, schedules and workflows in flight the code of this process would break.

``manage.py horsies_check_deploy`` prints the findings. The check calls no code of the project, changes nothing, and
reads a bounded number of rows.
"""

from __future__ import annotations

from ...core.backends import backends_on, horsies_backend
from ...core.compat import DEFAULT_TASK_BACKEND_ALIAS
from ...worker.code_version import code_version
from .calls import Breakage, Check, DeployReport
from .nodes import check_nodes
from .tasks import check_runs, check_schedules, check_tasks, check_workers

__all__ = ["Breakage", "DeployReport", "check_deploy"]


def check_deploy(backend: str | None = None) -> DeployReport:
    """Return what the code of this process would break: tasks, schedules and nodes of workflows in flight.

    Checks the rows of one backend, or all in the default backend's database. Raises ValueError if the alias is not a
    HorsiesBackend.
    """
    database = horsies_backend(backend or DEFAULT_TASK_BACKEND_ALIAS).config.database
    backends = backends_on(database)
    # Workers claim by queue, whatever the backend of a row. A backend without QUEUES serves any.
    serves_any = not all(each.queues for each in backends.values())
    queues = set() if serves_any else {queue for each in backends.values() for queue in each.queues}
    check = Check(database, backend, queues)
    check_tasks(check)
    check_runs(check, {code_version(each.config) for each in backends.values()})
    check_workers(check, max(each.config.recovery.claimed_stale_after for each in backends.values()))
    check_nodes(check)
    for alias, each in backends.items():
        if backend in (None, alias):
            check_schedules(check, alias, each)
    return check.report()
