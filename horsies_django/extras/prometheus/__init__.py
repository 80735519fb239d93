"""Metrics in the format of Prometheus. Importing this raises ImproperlyConfigured if its library is not installed."""

from django.core.exceptions import ImproperlyConfigured

try:
    import prometheus_client  # noqa: F401  # tests whether it is installed
except ImportError as error:
    raise ImproperlyConfigured(
        "Metrics need the library prometheus-client: pip install 'horsies-django[prometheus]'"
    ) from error
