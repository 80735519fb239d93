"""The parts of an example: how tasks are sent, how bodies end, and which rows and claims are picked."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from hypothesis import strategies as st

WORKERS = ("anna", "ben", "cora")
QUEUES = ("default", "emails")
POLICIES: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = (
    ((), ()),
    (("WORKER_CRASHED",), (50,)),
    (("USER_CODE", "TASK_TIMEOUT"), (50, 100)),
    (("*",), (100, 50)),
)
ENDINGS = ("ok", "USER_CODE", "raise", "snooze", "retry", "discard", "unstorable")


class Pick(NamedTuple):
    """Which claim: one of those that the rule can use, or of all ever made, counted from the latest."""

    fits: bool
    place: int


class Send(NamedTuple):
    """How a task is sent."""

    delay: int
    good_for: int | None
    policy: tuple[tuple[str, ...], tuple[int, ...]]
    priority: int
    queue: str
    unique_key: str | None
    timeout: int | None
    retention: int | str | None

    @property
    def kept(self) -> timedelta | str | None:
        return timedelta(seconds=self.retention) if isinstance(self.retention, int) else self.retention


picks = st.builds(Pick, st.sampled_from([True, True, True, False]), st.integers(0, 7))
some_picks = st.lists(picks, min_size=1, max_size=3)
workers = st.sampled_from(WORKERS)
some_rows = st.lists(st.integers(0, 7), min_size=1, max_size=3)
places = st.integers(0, 7)
endings = st.sampled_from(ENDINGS)
sends = st.builds(
    Send,
    delay=st.sampled_from([0, 0, 0, 50, 100]),
    good_for=st.sampled_from([None, None, 100, 200, 50, -50]),
    policy=st.sampled_from(POLICIES),
    priority=st.sampled_from([0, 0, 5]),
    queue=st.sampled_from(QUEUES),
    unique_key=st.sampled_from([None, None, "a", "b"]),
    timeout=st.sampled_from([None, 70]),
    retention=st.sampled_from(["inherit", "inherit", None, 300]),
).filter(lambda send: not send.delay or send.good_for is None or send.good_for > send.delay)
