"""The tests' settings with the recovery options in TEST_RECOVERY, as JSON: ``{}`` means the defaults."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import TASKS

TASKS["default"]["OPTIONS"]["recovery"] = json.loads(os.environ["TEST_RECOVERY"])
