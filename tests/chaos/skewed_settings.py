"""The tests' settings in a process whose clock is wrong by TEST_CLOCK_OFF seconds."""

import os
import time
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from tests.settings import *  # noqa: F403

OFF = float(os.environ.get("TEST_CLOCK_OFF", "0"))

_time = time.time
_datetime = datetime


def skewed_time() -> float:
    return _time() + OFF


def skewed_now() -> datetime:
    return _datetime.now(UTC) + timedelta(seconds=OFF)


time.time = skewed_time
timezone.now = skewed_now
