"""Tasks with something to hide."""

from horsies_django import task


@task
def log_in(user, password):
    """Its second argument is sensitive by its name."""


@task
def unlock(user, *passwords, **more):
    """So are all but its first."""


@task(sensitive={"iban", "result"})
def pay(amount, iban=""):
    """Says itself what is sensitive."""


@task(sensitive=lambda name, value: isinstance(value, str) and "@" in value)
def remind(who, note=""):
    """Judges by the value."""


#: What :func:`judge` was asked about.
judged = []


def judge(name, value):
    judged.append(name)
    return name == "note"


@task(sensitive=judge)
def weigh(number, note=""):
    """Keeps count of what its hook was asked."""


def broken(name, value):
    raise RuntimeError("no idea")


@task(sensitive=broken)
def unsure(value):
    """Can't say."""


@task(takes_context=True, sensitive=["code"])
def in_context(context, code):
    """Its context is no argument of a call."""


NOT_A_TASK = 3
