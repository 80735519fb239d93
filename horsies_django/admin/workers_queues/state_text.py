"""The state of a worker as a label: online, not responding, offline, standing still, stopping or quiet."""

from __future__ import annotations

from typing import Any, Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_brief
from ...core.liveness import Liveness, liveness_of
from ...core.numbers import fill_numbers, format_number
from ...db.expressions import SecondsUntil
from ...ops.metrics.workers import WorkerStatus, recovery_of
from ..ages import age, age_at

#: Annotations of a row of the table of workers that its state needs.
STATE_TIMES: Final = {"beats_in": SecondsUntil("last_beat_at"), "stalled_in": SecondsUntil("stalled_since")}


def worker_state(worker: Any) -> SafeString:
    """Return the state of a row of the table of workers, annotated with ``STATE_TIMES``."""
    silence, recovery = -worker.beats_in, recovery_of(worker.backend)
    liveness = liveness_of(silence, recovery)
    if liveness is not Liveness.ONLINE:
        since = age(silence, worker.last_beat_at, "brief")
        return _silent_label(liveness, since, recovery.heartbeat_interval)
    if worker.stalled_since is not None:
        return _stalled_label(age(-worker.stalled_in, worker.stalled_since, "brief"))
    return _label(is_stopping=worker.stop_requested_at is not None, is_quiet=worker.quiet_since is not None)


def is_responding(worker: Any) -> bool:
    """Return whether the heartbeats of a worker arrive; it is annotated with ``STATE_TIMES``."""
    return liveness_of(-worker.beats_in, recovery_of(worker.backend)) is Liveness.ONLINE


def is_online(worker: Any) -> bool:
    """Return whether its heartbeats arrive and it does not stand still; it is annotated with ``STATE_TIMES``."""
    return is_responding(worker) and worker.stalled_since is None


def status_label(worker: WorkerStatus, now: float) -> SafeString:
    """Return the state of a worker in a snapshot; ``now`` is the database's clock in seconds since 1970."""
    if worker.liveness is not Liveness.ONLINE:
        return _silent_label(worker.liveness, age_at(worker.beat_ago, now, "brief"), worker.beat_interval)
    if worker.stalled_for is not None:
        return _stalled_label(age_at(worker.stalled_for, now, "brief"))
    return _label(is_stopping=worker.is_stopping, is_quiet=worker.is_quiet)


def _silent_label(liveness: Liveness, silence: SafeString | str, interval: float) -> SafeString:
    if liveness is Liveness.OFFLINE:
        return format_html(
            '<span class="horsies-offline">{}</span> <span class="quiet">{}</span>',
            _("offline"),
            format_html(_("(no heartbeat for {silence})"), silence=silence),
        )
    return format_html(
        '<span class="horsies-silent">{}</span> <span class="quiet">{}</span>',
        _("not responding"),
        format_html(
            _("(no heartbeat for {silence}; expected every {interval})"),
            silence=silence,
            interval=format_brief(interval),
        ),
    )


def _stalled_label(duration: SafeString | str) -> SafeString:
    return format_html(
        '<span class="horsies-silent">{}</span> <span class="quiet">{}</span>',
        _("stands still"),
        format_html(_("(for {duration})"), duration=duration),
    )


def _label(*, is_stopping: bool, is_quiet: bool) -> SafeString:
    if is_stopping:
        return format_html('<span class="horsies-stopping">{}</span>', _("stopping"))
    if is_quiet:
        return format_html('<span class="horsies-quiet">{}</span>', _("quiet"))
    return format_html('<span class="horsies-alive">{}</span>', _("online"))


def format_load(sync: int, threads: int | None, coroutines: int, async_slots: int | None) -> str:
    """Return how many slots of a worker are taken, by kind; coroutines only if there are any."""
    text = f"{format_number(sync)}/{'?' if threads is None else format_number(threads)}"
    if not coroutines:
        return text
    slots = "?" if async_slots is None else format_number(async_slots)
    numbers = {"sync": text, "coroutines": coroutines, "slots": slots}
    return fill_numbers(_("%(sync)s, async %(coroutines)d/%(slots)s"), numbers)
