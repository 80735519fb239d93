"""Metrics in the format of Prometheus. Importing this raises ImproperlyConfigured if its library is not installed."""

from django.core.exceptions import ImproperlyConfigured

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector  # older versions lack this class
except ImportError as error:
    raise ImproperlyConfigured(
        "Metrics need the library prometheus-client: pip install 'horsies-django[prometheus]'"
    ) from error


def render(collector: Collector, accept: str) -> tuple[bytes, str]:
    """Return the metrics of a collector and their content type, as the ``Accept`` header asks for.

    Each time in a registry of its own: nothing is kept between two scrapes.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    content: bytes = encode(registry)
    return content, content_type
