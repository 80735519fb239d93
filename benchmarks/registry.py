"""All peers by name, with their requirements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CHECKOUT: Final = Path(__file__).resolve().parent.parent

# The stores of tasks.
POSTGRES: Final = "postgres"
REDIS: Final = "redis"
SQLITE: Final = "sqlite"

# What runs a peer, and the registry that it comes from.
PYTHON: Final = "python"
NODE: Final = "node"


@dataclass(frozen=True, slots=True)
class Peer:
    """A task queue in one configuration: a row of the table.

    Peers with the same ``module`` share a virtual environment and differ by ``variant``. ``skips`` names the measures
    that the variant cannot affect, or for which the peer is too slow. A slow peer drains only the fraction
    ``task_share`` of the tasks. ``in_depth`` peers take part in ``depth`` and ``pinned`` and are never dropped for
    being slow; their modules have ``preload()`` and ``clear_tasks()``. ``keeps`` says what the peer stores of each
    task. A peer on Node has its module in ``node/``, and requirements of which the first that runs is installed. A peer
    ``of_commit`` is this package as of the commit of ``--before``. ``default_slots`` are those of a process at the
    peer's defaults, if they differ from what its module recommends. ``only`` names the one measure of a variant.
    """

    name: str
    module: str
    requirements: tuple[str, ...]
    distribution: str
    store: str
    keeps: str
    runtime: str = PYTHON
    site: str = ""
    variant: str = ""
    task_share: float = 1.0
    quick: bool = False
    processes: int | None = None
    in_depth: bool = False
    workflows: bool = False
    of_commit: bool = False
    has_coroutines: bool = False
    default_slots: int | None = None
    only: str = ""
    skips: frozenset[str] = frozenset()


_OURS: Final = ("-e", f"{CHECKOUT}[binary]")
_OURS_KEEPS: Final = "result, attempt, all times"
_SENDS: Final = frozenset({"enqueue", "bulk"})
#: For peers that run fewer than 400 tasks a second, or look for new ones once a second.
_LOADS: Final = frozenset({"load", "curve"})
_DJANGO: Final = ("Django>=6,<6.2", "psycopg[binary]")


def _ours(name: str, store: str = POSTGRES, **more: Any) -> Peer:
    return Peer(name, "ours", _OURS, "horsies-django", store, _OURS_KEEPS, site="ours", **more)


def _pgqueuer(name: str, **more: Any) -> Peer:
    keeps = "a line of its log, no result"
    return Peer(name, "pgqueuer", ("pgqueuer[asyncpg]",), "pgqueuer", POSTGRES, keeps, quick=True, **more)


def _graphile(name: str, **more: Any) -> Peer:
    # The newest version needs Node 22.18.
    requirements = ("graphile-worker@latest", "graphile-worker@0.17")
    return Peer(name, "graphile", requirements, "graphile-worker", POSTGRES, "nothing", runtime=NODE, **more)


def _django(name: str, keeps: str, task_share: float, **more: Any) -> Peer:
    module = name.replace("-", "_")
    more |= {"site": module, "task_share": task_share, "skips": _LOADS}
    return Peer(name, module, (name, *_DJANGO), name, POSTGRES, keeps, **more)


def _only_orm(name: str, requirement: str, store: str, keeps: str, **more: Any) -> Peer:
    module = f"{name}_django"
    requirements = (requirement, *_DJANGO)
    return Peer(f"{name}-django", module, requirements, name, store, keeps, site=module, only="orm", **more)


def _huey(store: str, **more: Any) -> Peer:
    requirements = ("huey[redis,postgres]", "psycopg[binary]")
    return Peer(f"huey-{store}", "huey", requirements, "huey", store, "result", variant=store, **more)


def _durable(name: str, requirements: tuple[str, ...]) -> Peer:
    keeps = "result, times, values of steps"
    return Peer(name, name, (*requirements, "psycopg[binary]"), requirements[0], POSTGRES, keeps, only="steps")


def _horsies(name: str, **more: Any) -> Peer:
    requirements = ("horsies[pg-binary]",)
    return Peer(
        name, "horsies", requirements, "horsies", POSTGRES, "result, attempts", task_share=0.01, workflows=True, **more
    )


_ALL: Final = [
    _ours("horsies-django", quick=True, in_depth=True, workflows=True),
    _ours("horsies-django-8", variant="default", skips=_SENDS | {"sleep"}, in_depth=True, has_coroutines=True),
    _ours("horsies-django-before", variant="default", of_commit=True, has_coroutines=True),
    _ours("horsies-django-sqlite", SQLITE, processes=1),
    _pgqueuer("pgqueuer", in_depth=True),
    _pgqueuer("pgqueuer-100", variant="batch100", skips=_SENDS | {"latency", "sleep", "idle"}),
    Peer("awa", "awa", ("awa-pg", "psycopg[binary]"), "awa-pg", POSTGRES, "row of the last seconds, no result"),
    _graphile("graphile", in_depth=True),
    _graphile("graphile-tuned", variant="tuned", skips=_SENDS),
    Peer(
        "procrastinate",
        "procrastinate",
        ("procrastinate", "psycopg[binary,pool]"),
        "procrastinate",
        POSTGRES,
        "row, events, no result",
        task_share=0.1,
        quick=True,
    ),
    Peer("oban", "oban", ("oban",), "oban", POSTGRES, "row, times, no result", task_share=0.25),
    _django("django-tasks-db", "result, times", 0.04),
    _django("django-ox", "result, times", 0.05, default_slots=1),
    _django("dj-queue", "result, times", 0.03),
    _django("django-q2", "result, times", 0.02),
    _horsies("horsies", skips=_LOADS),
    _horsies("horsies-tuned", variant="tuned", skips=_SENDS | _LOADS | {"idle"}),
    _huey(REDIS, task_share=0.5),
    _huey(POSTGRES, task_share=0.15),
    _huey(SQLITE, processes=1),
    Peer("celery", "celery", ("celery[redis]",), "celery", REDIS, "result", task_share=0.15, workflows=True),
    _only_orm("celery", "celery[redis]", REDIS, "result"),
    _only_orm(
        "procrastinate",
        "procrastinate[django]",
        POSTGRES,
        "row, events, no result",
        has_coroutines=True,
        default_slots=1,
    ),
    _durable("dbos", ("dbos",)),
    _durable("absurd", ("absurd-sdk", "absurdctl")),
    Peer(
        "threadmill",
        "threadmill",
        ("threadmill[redis]", *_DJANGO),
        "threadmill",
        REDIS,
        "result, times",
        site="threadmill",
        task_share=0.25,
    ),
    Peer("dramatiq", "dramatiq", ("dramatiq[redis]",), "dramatiq", REDIS, "nothing", task_share=0.25),
    Peer("rq", "rq", ("rq",), "rq", REDIS, "result, times", task_share=0.01, skips=_LOADS),
]

#: The baseline of the table's ratio: the first of these with results.
OURS: Final = ("horsies-django", "horsies-django-sqlite")

PEERS: Final = {peer.name: peer for peer in _ALL}
