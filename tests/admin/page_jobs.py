"""Tasks with sensitive arguments and results."""

from horsies_django import Unique, task


@task
def log_in(user, password):
    """Take a second argument whose name makes it sensitive."""


@task
def unlock(user, *passwords, **more):
    """Take sensitive extra arguments: all but the first."""


@task(sensitive={"iban", "result"})
def pay(amount, iban=""):
    """Declare its sensitive values by name."""


@task(sensitive=lambda name, value: isinstance(value, str) and "@" in value)
def send_reminder(recipient, note=""):
    """Declare its sensitive values by a function of the value."""


#: The names that :func:`is_sensitive` was called with.
checked_names = []


def is_sensitive(name, value):
    checked_names.append(name)
    return name == "note"


@task(sensitive=is_sensitive)
def with_recording_hook(number, note=""):
    """Declare a hook that records its calls."""


def broken(name, value):
    raise RuntimeError("no idea")


@task(sensitive=broken)
def with_failing_hook(value):
    """Declare a hook that raises."""


@task(takes_context=True, sensitive=["code"])
def in_context(context, code):
    """Take a context, which is not an argument of the call."""


NOT_A_TASK = 3


@task(unique=Unique(by=("name",)))
def once(name: str) -> None: ...


@task(unique=Unique(), sensitive={"pin"})
def once_by_pin(pin: str) -> None: ...


@task(unique=Unique(key="door-{pin}"), sensitive={"pin"})
def once_by_key_of_pin(pin: str) -> None: ...


@task(max_concurrency=1, concurrency_key=lambda pin: pin, sensitive={"pin"})
def one_by_pin(pin: str) -> None: ...
