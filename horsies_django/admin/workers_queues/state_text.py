"""The state of a worker as a label: online, not responding, offline, stopping or quiet."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.durations import format_brief
from ...core.liveness import Liveness, liveness_of
from ...ops.metrics.workers import WorkerStatus, recovery_of
from ..ages import age, age_at


def worker_state(worker: Any) -> SafeString:
    """Return the state of a row of the table of workers, annotated with ``beats_in``: see ``SecondsUntil``."""
    silence, recovery = -worker.beats_in, recovery_of(worker.backend)
    liveness = liveness_of(silence, recovery)
    if liveness is not Liveness.ONLINE:
        since = age(silence, worker.last_beat_at, "brief")
        return _silent_label(liveness, since, recovery.heartbeat_interval)
    return _label(is_stopping=worker.stop_requested_at is not None, is_quiet=worker.quiet_since is not None)


def is_online(worker: Any) -> bool:
    """Return whether the heartbeats of a worker arrive; it is annotated as for :func:`worker_state`."""
    return liveness_of(-worker.beats_in, recovery_of(worker.backend)) is Liveness.ONLINE


def status_label(worker: WorkerStatus, now: float) -> SafeString:
    """Return the state of a worker in a snapshot; ``now`` is the database's clock in seconds since 1970."""
    if worker.liveness is not Liveness.ONLINE:
        return _silent_label(worker.liveness, age_at(worker.beat_ago, now, "brief"), worker.beat_interval)
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


def _label(*, is_stopping: bool, is_quiet: bool) -> SafeString:
    if is_stopping:
        return format_html('<span class="horsies-stopping">{}</span>', _("stopping"))
    if is_quiet:
        return format_html('<span class="horsies-quiet">{}</span>', _("quiet"))
    return format_html('<span class="horsies-alive">{}</span>', _("online"))
