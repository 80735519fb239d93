"""The tests' settings, with the thresholds that TEST_RECOVERY has, in JSON: ``{}`` are the defaults."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import TASKS

TASKS["default"]["OPTIONS"]["recovery"] = json.loads(os.environ["TEST_RECOVERY"])
