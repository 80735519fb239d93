"""Collect the problems of tasks while Django starts; a system check then reports all of them."""

from __future__ import annotations

import difflib
from typing import Any, Final

from .compat import FrameworkTask, task_backends
from .options import Problem


class Loading:
    """Whether Django is starting, and the tasks whose backend lacks their queue.

    During the start such a task raises nothing, so that a system check can report all of them, not only the first.
    Sending one still raises InvalidTask.
    """

    def __init__(self) -> None:
        self.is_active = False
        self.problems: list[Problem] = []

    def note_queue(self, task: FrameworkTask[..., Any], queues: set[str]) -> None:
        """Record that a task's queue is not in ``queues``. Does nothing if QUEUES is one text: a check reports that."""
        if isinstance(task_backends.settings[task.backend].get("QUEUES"), str):
            return
        name, known = task.queue_name, sorted(queues)
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "Add the name to QUEUES, or give the task another queue."
        allowed = f"the QUEUES of TASKS[{task.backend!r}], {', '.join(known)}"
        problem = Problem(f"queue_name of {task.module_path}", name, allowed, hint)
        if problem not in self.problems:
            self.problems.append(problem)


loading: Final = Loading()
