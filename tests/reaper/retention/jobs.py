"""Tasks with different retentions."""

from horsies_django import task


@task
def plain() -> str:
    return "done"


@task
def failing():
    raise ValueError("no luck")


@task(retention=0)
def fleeting() -> str:
    return "gone"


@task(retention=None)
def kept_for_ever() -> str:
    return "kept"


@task(retention="2h")
def two_hours() -> str:
    return "kept for two hours"


@task(retention=0, atomic=True)
def fleeting_atomic() -> str:
    return "gone"


@task(retention={"completed": "2h", "failed": "3h"})
def by_state(fails: bool) -> str:
    if fails:
        raise ValueError("no luck")
    return "kept by how it ends"
