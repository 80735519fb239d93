"""Logging: each log record of a body contains its task."""

import logging
import logging.config

import project

project.setup()

from horsies_django import current_task, task
from horsies_django.testing import drain

LOGGING = {  # in your settings
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"task": {"()": "horsies_django.log.TaskContextFilter"}},
    "formatters": {"task": {"format": "{task_name} queue={queue} attempt={attempt}: {message}", "style": "{"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "stream": "ext://sys.stdout",
            "filters": ["task"],
            "formatter": "task",
        }
    },
    "loggers": {"shop": {"handlers": ["console"], "level": "INFO"}},
}
logging.config.dictConfig(LOGGING)  # Django does this
logger = logging.getLogger("shop")


def look_up(order):  # a function that does not know about tasks
    logger.info("looking up order %s", order)


@task(name="shop.ship", queue_name="parcels", max_attempts=2, backoff=0)
def ship(order):
    look_up(order)
    current = current_task()  # the same in Python
    if current.attempt == 1:
        raise ConnectionError
    logger.info("%s is shipped", current.name)


look_up(3)  # outside of tasks the attributes are None
ship.send(4)
drain()

# Output:
# None queue=None attempt=None: looking up order 3
# shop.ship queue=parcels attempt=1: looking up order 4
# shop.ship queue=parcels attempt=2: looking up order 4
# shop.ship queue=parcels attempt=2: shop.ship is shipped
