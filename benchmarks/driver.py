"""``python -m benchmarks.driver NAME`` calls the functions of a peer's module inside that peer's virtual environment.

It reads a JSON object with a call from each line of standard input, and writes a line with the returned value and the
duration, or with the traceback.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any


def handle_call(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Make one call and return the response."""
    began = time.monotonic()
    try:
        value = _function(module, call["do"])(**call["with"])
    except Exception:  # noqa: BLE001 - the table reports any exception of a peer
        return {"error": traceback.format_exc()}
    return {"value": value, "seconds": time.monotonic() - began}


def _function(module: Any, name: str) -> Callable[..., Any]:
    """Return a function of this module, which uses the peer's ``send()``, or else of the peer's module."""
    if name in ("send_each", "send_on_time"):
        return partial(globals()[name], module)
    if name == "add_sent":
        return getattr(module, name, lambda count: None)
    function: Callable[..., Any] = getattr(module, name)
    return function


def send_each(module: Any, first: int, count: int, pause: float) -> list[float]:
    """Enqueue one by one, with pauses, and return the start time of each call."""
    called_at = []
    for number in range(first, first + count):
        if pause:
            # Vary the pause, so that it never aligns with a peer's polling interval.
            time.sleep(pause * (0.5 + (number * 0.618_033_988_7) % 1))
        called_at.append(time.monotonic())
        module.send(number)
    return called_at


def send_on_time(
    module: Any,
    first: int,
    count: int,
    start: float,
    rate: float,
    burst: int,
    sender: int,
    senders: int,
    until: float = math.inf,
) -> list[list[float]]:
    """Enqueue every task of this sender when it is due; return when the calls began, and when they returned.

    ``count`` tasks are due in bursts of ``burst``, ``rate`` tasks a second, from ``start`` on the monotonic clock. The
    senders take turns. One that is late sends at once and keeps the timetable. It sends nothing after ``until``.
    """
    called_at, returned_at = [], []
    for index in range(sender, count, senders):
        wait = start + index // burst * burst / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        if time.monotonic() > until:
            break
        called_at.append(time.monotonic())
        module.send(first + index)
        returned_at.append(time.monotonic())
    return [called_at, returned_at]


def main() -> None:
    """Respond to calls until end of input."""
    # Redirect the peer's own output to its log.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        module = importlib.import_module(f"benchmarks.peers.{sys.argv[1]}")
    except Exception:  # noqa: BLE001
        print(json.dumps({"error": traceback.format_exc()}), file=out)
        return
    print(json.dumps({"value": "ready", "seconds": 0}), file=out)
    for line in sys.stdin:
        print(json.dumps(handle_call(module, json.loads(line))), file=out)


if __name__ == "__main__":
    main()
