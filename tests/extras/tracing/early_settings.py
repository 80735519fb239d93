"""The tests' settings, which create the tracer provider themselves: its exporter has a thread before a worker forks."""

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.extras.tracing.settings import FileExporter
from tests.extras.tracing.untraced_settings import *  # noqa: F403

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(FileExporter()))
trace.set_tracer_provider(provider)
