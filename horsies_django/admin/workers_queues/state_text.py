"""The state of a worker as a label, and its load."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...core.numbers import fill_numbers, format_brief, format_number
from ...ops.metrics.workers import Liveness, WorkerStatus
from ..ages import age


def status_label(worker: WorkerStatus) -> SafeString:
    """Return the state of a worker: online, not responding, offline, standing still, stopping or quiet."""
    silence = age(worker.beat_ago, worker.last_beat_at, "brief")
    if worker.liveness is Liveness.OFFLINE:
        return _label("offline", _("offline"), format_html(_("(no heartbeat for {silence})"), silence=silence))
    if not worker.is_responding:
        interval = format_brief(worker.beat_interval)
        note = format_html(
            _("(no heartbeat for {silence}; expected every {interval})"), silence=silence, interval=interval
        )
        return _label("silent", _("not responding"), note)
    if worker.stalled_for is not None and worker.stalled_since is not None:
        duration = age(worker.stalled_for, worker.stalled_since, "brief")
        return _label("silent", _("stands still"), format_html(_("(for {duration})"), duration=duration))
    if worker.is_stopping:
        return _label("stopping", _("stopping"))
    return _label("quiet", _("quiet")) if worker.is_quiet else _label("alive", _("online"))


def _label(key: str, text: str, note: SafeString | str = "") -> SafeString:
    label = format_html('<span class="horsies-{}">{}</span>', key, text)
    return format_html('{} <span class="quiet">{}</span>', label, note) if note else label


def format_load(worker: WorkerStatus) -> str:
    """Return how many slots of a worker are taken, by kind; coroutines only if there are any."""
    threads = "?" if worker.threads is None else format_number(worker.threads)
    text = f"{format_number(worker.threads_taken)}/{threads}"
    if not worker.async_slots_taken:
        return text
    slots = "?" if worker.async_slots is None else format_number(worker.async_slots)
    numbers = {"sync": text, "coroutines": worker.async_slots_taken, "slots": slots}
    return fill_numbers(_("%(sync)s, async %(coroutines)d/%(slots)s"), numbers)
