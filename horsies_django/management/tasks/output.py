"""``horsies_task output``."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.core.serializers.json import DjangoJSONEncoder

from horsies_django.core.printable import lines, one_line
from horsies_django.core.status import OutputKind
from horsies_django.enqueue.output import OutputChunk
from horsies_django.ops.inspector import Inspector

from .act import parse_count, parse_ids


def print_output(inspector: Inspector, options: dict[str, Any], out: OutputWrapper) -> None:
    """Print what a task has written and logged. Raises CommandError if there is no such task."""
    (key,) = parse_ids([options["id"]])
    after = parse_count("--after", options["after"]) or 0
    chunks = inspector.output(key, after=after, follow=options["follow"])
    if chunks is None:
        raise CommandError(f"{key}: there is no such task", returncode=1)
    with suppress(KeyboardInterrupt):  # it ends --follow
        for chunk in chunks:
            out.write(_json_line(chunk) if options["json"] else _text(chunk))
            out.flush()


def _json_line(chunk: OutputChunk) -> str:
    return json.dumps(asdict(chunk), ensure_ascii=False, cls=DjangoJSONEncoder)


def _text(chunk: OutputChunk) -> str:
    if chunk.kind == OutputKind.LOG and isinstance(chunk.data, dict):
        level, logger, message = (str(chunk.data.get(name, "")) for name in ("level", "logger", "message"))
        return f"{one_line(level)} {one_line(logger)} {lines(message)}"
    return lines(chunk.data if isinstance(chunk.data, str) else json.dumps(chunk.data, ensure_ascii=False))
