"""The tests' settings, with the recipe of docs/sentry.md and a transport that writes events to a file."""

import json
import os
import re
import sys
import types
from functools import partial
from pathlib import Path

import sentry_sdk
from sentry_sdk.transport import Transport

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


PAGE = (Path(__file__).parents[3] / "docs" / "sentry.md").read_text()
BLOCKS = dict(re.findall(r"^```python\n# shop/(\S+)\.py\n(.*?)^```$", PAGE, re.M | re.S))


class Recipe(types.ModuleType):
    """A module of the page, which runs when its first name is needed: that is after Django has started."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = types.ModuleType
        exec(BLOCKS[self.__name__.removeprefix("shop.")], self.__dict__)
        return getattr(self, name)


for module in ("shop", "shop.sentry", "shop.crashes"):
    sys.modules[module] = Recipe(module)

os.environ["SENTRY_DSN"] = "https://key@sentry.invalid/1"
plain_init, sentry_sdk.init = sentry_sdk.init, partial(sentry_sdk.init, transport=FileTransport)
page: dict = {}
exec(BLOCKS["settings"], page)
sentry_sdk.init = plain_init

OPTIONS = {
    **PLAIN["default"]["OPTIONS"],
    **page["TASKS"]["default"]["OPTIONS"],
    "modules": ["tests.extras.sentry.jobs", "tests.jobs.tasks"],
}
TASKS = {"default": {**PLAIN["default"], "OPTIONS": OPTIONS}}
INSTALLED_APPS = [*PLAIN_APPS, "tests.extras.sentry.apps.CrashesConfig"]
