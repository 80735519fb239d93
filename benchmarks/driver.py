"""``python -m benchmarks.driver NAME`` calls the functions of a peer's module inside that peer's virtual environment.

It reads a JSON object with a call from each line of standard input, and writes a line with the returned value and the
duration, or with the traceback.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any


def handle_call(module: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Make one call and return the response."""
    began = time.monotonic()
    try:
        value = send_each(module, **call["with"]) if call["do"] == "send_each" else None
        if call["do"] != "send_each":
            value = getattr(module, call["do"])(**call["with"])
    except Exception:  # noqa: BLE001 - the table reports any exception of a peer
        return {"error": traceback.format_exc()}
    return {"value": value, "seconds": time.monotonic() - began}


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
