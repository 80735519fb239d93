"""``manage.py horsies_task``."""

from __future__ import annotations

import os
import sys
from argparse import RawDescriptionHelpFormatter
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser

from horsies_django.core.compat import InvalidTask
from horsies_django.core.exceptions import PayloadMismatch
from horsies_django.management.base import QueueCommand, usage_errors
from horsies_django.management.tasks import act, enqueue, output, show
from horsies_django.ops.inspector import Inspector, tasks
from horsies_django.ops.inspector.inspector import PAGE
from horsies_django.ops.task_states import ALLOWED

_HELP: Final = """\
List tasks, show them, and change them: by id, or all that match filters.

  horsies_task list --status failed --queue emails
  horsies_task show 01991f3e-…
  horsies_task output 01991f3e-… --follow
  horsies_task retry 01991f3e-… 01991f3f-…
  horsies_task run --all --status scheduled --task shop.tasks.remind
  horsies_task list --status failed --older-than 7d --all --ids | horsies_task delete -
  horsies_task move --all --queue bulk --to-queue slow --dry-run
  horsies_task event approved 01991f3e-… --payload '{"by": 7}'
  horsies_task enqueue shop.tasks.remind --kwargs '{"user": 7}' --in 2h

Sensitive values of tasks are masked, as in the admin. --backend also reads HORSIES_TASK_BACKEND; the flag takes
precedence. Exit status: 0 done; 1 a task was skipped or an action failed; 2 wrong usage.
"""

#: The help of each action that changes tasks.
_ACTS: Final = {
    "run": "Make scheduled and retrying tasks due now.",
    "cancel": "Cancel tasks that have not started; with --running, also ask running tasks to stop.",
    "retry": "Run failed, cancelled and expired tasks again, with all their retries.",
    "move": "Change the queue, the priority or both of tasks that have not started.",
    "event": "Send an event to tasks that have not ended; --all without --status to those that wait for one.",
    "delete": "Delete ended tasks; with ids or --status, also tasks that have not started.",
}


#: The help of ``--json``.
_JSON: Final = "Print JSON; a list is one object per line."


class Command(QueueCommand):
    """Lists, shows, changes and sends tasks."""

    help = _HELP
    backend_help = "Only tasks of this key of TASKS (default: all)."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Keep the line breaks of the examples in the help."""
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        self.add_backend(parser)
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        _add_listing(self.add_action(actions, "list", "List tasks, the newest first.", _JSON))
        by_id = self.add_action(actions, "show", "Show the details of tasks.", _JSON)
        by_id.add_argument("ids", metavar="ID", nargs="+", help="Ids of tasks; - reads ids from standard input.")
        output_parser = self.add_action(actions, "output", "Print what a task has written and logged.", _JSON)
        output_parser.add_argument("id", metavar="ID", help="The id of the task.")
        output_parser.add_argument("--follow", action="store_true", help="Print new output too, until the task ends.")
        output_parser.add_argument("--after", metavar="N", help="Start after the chunk with this sequence.")
        for name, text in _ACTS.items():
            action_parser = self.add_action(actions, name, text, _JSON)
            if name == "event":
                action_parser.add_argument("name", metavar="NAME", help="The name of the event.")
                action_parser.add_argument(
                    "--payload", metavar="JSON", default="null", help="What context.wait_event() returns."
                )
            _add_action(action_parser)
            if name == "cancel":
                action_parser.add_argument("--running", action="store_true", help="Also running tasks.")
            if name == "move":
                action_parser.add_argument("--to-queue", metavar="NAME", help="The new queue.")
                action_parser.add_argument("--priority", metavar="N", help="The new priority, from -100 to 100.")
        enqueue.add_arguments(self.add_action(actions, "enqueue", "Send a call of a task of an installed app.", _JSON))

    def handle(self, *args: Any, **options: Any) -> None:
        with usage_errors():
            inspector = tasks(self.flag("backend", options["backend"])[1])
        try:
            with self.tables(inspector.database):
                self._do(inspector, options)
        except (ValueError, TypeError, InvalidTask, PayloadMismatch) as error:
            raise CommandError(str(error), returncode=2) from error
        except BrokenPipeError:  # the reader closed the pipe; without this, Python reports it again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _do(self, inspector: Inspector, options: dict[str, Any]) -> None:
        match options["action"]:
            case "list":
                show.print_list(inspector, options, self.stdout, self.stderr)
            case "show":
                show.print_tasks(inspector, options, self.stdout, self.stderr)
            case "output":
                output.print_output(inspector, options, self.stdout)
            case "enqueue":
                enqueue.enqueue(inspector, options, self.stdout)
            case action:
                act.act(inspector, action, options, self.stdout, self.stderr)


def _add_filters(parser: CommandParser) -> None:
    """Add the flags that filter tasks."""
    parser.add_argument("--status", metavar="A,B", help=f"Only tasks in these states: {ALLOWED}.")
    parser.add_argument("--queue", metavar="NAME", help="Only tasks in this queue.")
    parser.add_argument(
        "--task", metavar="NAME", help="Only calls of the task with this name; its old names count too."
    )
    parser.add_argument(
        "--older-than", metavar="DURATION", help='Only tasks sent longer ago than this: "90s", "12h", "7d".'
    )
    parser.add_argument(
        "--error", metavar="FINGERPRINT", help="Only tasks whose last attempt failed with this error; see `show`."
    )


def _add_listing(parser: CommandParser) -> None:
    """Add the flags of ``list``."""
    _add_filters(parser)
    parser.add_argument("--limit", metavar="N", default=str(PAGE), help="Print at most N tasks (default: %(default)s).")
    parser.add_argument("--all", action="store_true", help="Print all tasks, page by page.")
    parser.add_argument("--after", metavar="ID", help="Start after this task, the last of the previous page.")
    parser.add_argument("--ids", action="store_true", help="Print ids only, for another command's standard input.")


def _add_action(parser: CommandParser) -> None:
    """Add the flags of actions on many tasks: which tasks, and how to confirm."""
    parser.add_argument("ids", metavar="ID", nargs="*", help="Ids of tasks; - reads ids from standard input.")
    parser.add_argument("--all", action="store_true", help="All tasks that match the filters; asks for confirmation.")
    _add_filters(parser)
    parser.add_argument("--limit", metavar="N", help="Change at most N tasks, the newest first.")
    parser.add_argument("--yes", action="store_true", help="Do not ask for confirmation.")
    parser.add_argument("--dry-run", action="store_true", help="Change nothing; print what would be done.")
