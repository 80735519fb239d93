"""Settings for threadmill."""

from benchmarks.peers.base import REDIS

from .base import *  # noqa: F403
from .base import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "threadmill"]
TASKS = {"default": {"BACKEND": "threadmill.backends.redis.RedisTaskBackend", "REDIS_URL": REDIS}}
