"""The tests' settings, with the recipe of docs/sentry.md and a transport that writes events to a file."""

import json
import os
from functools import partial
from pathlib import Path

import sentry_sdk
from sentry_sdk.transport import Transport

from tests.extras.recipes import install
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as PLAIN_APPS
from tests.settings import TASKS as PLAIN


class FileTransport(Transport):
    """Writes each event as a line."""

    def capture_envelope(self, envelope):
        """Write the event of an envelope, if it has one."""
        if (event := envelope.get_event()) is not None:
            with Path(os.environ["HORSIES_EVENTS_FILE"]).open("a") as file:
                file.write(json.dumps(event, default=repr) + "\n")


os.environ["SENTRY_DSN"] = "https://key@sentry.invalid/1"
blocks, page = install("sentry"), {}
plain_init, sentry_sdk.init = sentry_sdk.init, partial(sentry_sdk.init, transport=FileTransport)
exec(blocks["shop/settings.py"], page)
sentry_sdk.init = plain_init

OPTIONS = {
    **PLAIN["default"]["OPTIONS"],
    **page["TASKS"]["default"]["OPTIONS"],
    "modules": ["tests.extras.sentry.jobs", "tests.jobs.tasks"],
}
TASKS = {"default": {**PLAIN["default"], "OPTIONS": OPTIONS}}
INSTALLED_APPS = [*PLAIN_APPS, "tests.extras.sentry.apps.CrashesConfig"]
