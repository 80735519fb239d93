"""Render collectors as text, each time in a registry of their own: nothing is kept between two scrapes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ...core.options import Options
from .queue_collector import QueueCollector


def render(collector: Collector, accept: str) -> tuple[bytes, str]:
    """Return the metrics of a collector and their content type, as the ``Accept`` header asks for."""
    registry = CollectorRegistry()
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    content: bytes = encode(registry)
    return content, content_type


def render_queue(options: Options, accept: str) -> tuple[bytes, str]:
    """Return the metrics of the whole queue and their content type. Raises django.db.Error."""
    return render(QueueCollector(options), accept)
