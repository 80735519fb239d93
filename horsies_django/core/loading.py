"""Whether Django is starting: what is wrong with a task then waits for the system checks, which tell of all at once."""

from __future__ import annotations

import difflib
from typing import Any, Final

from .compat import FrameworkTask, task_backends
from .options import Problem


class Loading:
    """Whether Django is starting, and the tasks that are for a queue which their backend does not have.

    Meanwhile such a task raises nothing: a system check tells of all of them at once, in place of a traceback of the
    first. To send one raises InvalidTask all the same.
    """

    def __init__(self) -> None:
        self.is_going_on = False
        self.problems: list[Problem] = []

    def note_queue(self, task: FrameworkTask[..., Any], queues: set[str]) -> None:
        """Note that a task is for a queue that is not among these, unless these are but the letters of one name."""
        if isinstance(task_backends.settings[task.backend].get("QUEUES"), str):
            return  # a check tells of that
        name, known = task.queue_name, sorted(queues)
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "Add the name to QUEUES, or give the task another queue."
        allowed = f"the QUEUES of TASKS[{task.backend!r}], {', '.join(known)}"
        problem = Problem(f"queue_name of {task.module_path}", name, allowed, hint)
        if problem not in self.problems:
            self.problems.append(problem)


loading: Final = Loading()
