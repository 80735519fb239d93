"""The tests' settings, with the set-up of docs/tracing.md and an exporter that writes spans to a file."""

import os
import sys
import types
from pathlib import Path

from opentelemetry.sdk.trace.export import ConsoleSpanExporter

from tests.extras.recipes import install
from tests.settings import *  # noqa: F403
from tests.settings import TASKS as PLAIN


class FileExporter(ConsoleSpanExporter):
    """Writes each span as a line, after the pid of its process."""

    def __init__(self):
        file = Path(os.environ["HORSIES_SPANS_FILE"]).open("a")  # noqa: SIM115  # open as long as the process
        super().__init__(out=file, formatter=lambda span: f"{os.getpid()} {span.to_json(indent=None)}\n")


otlp = types.ModuleType("opentelemetry.exporter.otlp.proto.http.trace_exporter")
otlp.OTLPSpanExporter = FileExporter
sys.modules[otlp.__name__] = otlp
blocks, page = install("tracing"), {}
exec(blocks["shop/settings.py"], page)

OPTIONS = {
    **PLAIN["default"]["OPTIONS"],
    **page["TASKS"]["default"]["OPTIONS"],
    "modules": ["tests.extras.tracing.jobs"],
}
TASKS = {"default": {**PLAIN["default"], "OPTIONS": OPTIONS}}
