"""``horsies_task event``."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from horsies_django.core.operations import log_operation
from horsies_django.enqueue.handle import TaskHandle, send_events
from horsies_django.ops.inspector import Inspector

from .act import parse_ids


def add_arguments(parser: CommandParser) -> None:
    """Add the event and its receivers."""
    parser.add_argument("name", metavar="NAME", help="The name of the event.")
    parser.add_argument("ids", metavar="ID", nargs="+", help="Ids of tasks; - reads ids from standard input.")
    parser.add_argument("--payload", metavar="JSON", default="null", help="What context.wait_event() returns.")


def send(inspector: Inspector, options: dict[str, Any], out: OutputWrapper) -> None:
    """Send an event to tasks. Raises CommandError if some got none, ValueError for wrong usage."""
    try:
        payload = json.loads(options["payload"])
    except ValueError as error:
        raise ValueError(f"--payload is not JSON: {error}") from None
    name, ids = options["name"], set(parse_ids(options["ids"]))
    rows = inspector.rows.filter(pk__in=ids).values_list("pk", "backend")
    handles = [TaskHandle[Any](key, backend=backend) for key, backend in rows]
    sent = send_events(dict.fromkeys(handles, payload), name)
    log_operation("task.send_event", sent, event=name)
    skipped = len(ids) - sent
    out.write(json.dumps({"event": name, "sent": sent, "skipped": skipped}) if options["json"] else f"sent: {sent}")
    if skipped:
        raise CommandError(f"{skipped} skipped: they have ended, or have 1,000 events to read.", returncode=1)
