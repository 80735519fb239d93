"""Metrics in the format of Prometheus. Importing this raises ImproperlyConfigured if its library is not installed."""

from django.core.exceptions import ImproperlyConfigured

try:
    from prometheus_client.registry import Collector  # noqa: F401  # older versions lack this class
except ImportError as error:
    raise ImproperlyConfigured(
        "Metrics need the library prometheus-client: pip install 'horsies-django[prometheus]'"
    ) from error
