"""The tests' settings, in which a runner takes longer to end than the shortest ``--stall-timeout``."""

import time

from horsies_django.signals import runner_stopping
from tests.settings import *  # noqa: F403


def flush(**_):
    time.sleep(6)
    print("flushed", flush=True)


runner_stopping.connect(flush)
