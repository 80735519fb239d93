"""``python -m tests.examples``: runs examples of the documentation, each in a process that forks from this one.

It reads names of files from standard input, and writes what each prints as a line of JSON. To set up Django and to
migrate a database takes a second: it is done once, and each example finds the tables empty.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.signals import setting_changed
from django.db import connection

#: What most examples import.
PRELOADED = (
    "horsies_django.management.commands.horsies_worker",
    "horsies_django.ops.inspector",
    "horsies_django.testing",
)

FOLDER = Path(__file__).parent.parent / "docs" / "examples"


def main() -> None:
    """Set up the project of the examples, then fork for each."""
    sys.path.insert(0, str(FOLDER))
    import project

    project.setup()
    project.setup = _set_options
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in an example would copy the pages that it shares with this process
    for line in sys.stdin:
        connection.close()
        print(json.dumps(_output_of(line.strip())), flush=True)
        call_command("flush", interactive=False, verbosity=0)


def _set_options(**options: Any) -> None:
    """Do what remains of ``project.setup()`` in a process that has called it before."""
    sys.modules["project"].name_script()
    settings.TASKS["default"]["OPTIONS"] = options
    setting_changed.send(sender=None, setting="TASKS", value=settings.TASKS, enter=True)


def _output_of(name: str) -> str:
    """Return all that an example prints, errors and warnings included."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _run(name, writing)
    os.close(writing)
    with os.fdopen(reading) as output:
        printed = output.read()
    os.waitpid(pid, 0)
    return printed


def _run(name: str, writing: int) -> None:
    """Run an example and end this process."""
    try:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
