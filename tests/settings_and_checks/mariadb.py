"""The queue in a database of a vendor that is refused; no server has to be there."""

from tests.settings import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "tests.settings_and_checks.other_vendor", "NAME": "nowhere"}}
