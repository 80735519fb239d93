"""Access to an endpoint: with the token of ``OPTIONS["metrics"]``, or without one if the endpoint is public."""

from __future__ import annotations

from secrets import compare_digest

from ..core.options import MetricsOptions

#: The header of a response to a request without a valid token.
CHALLENGE = 'Bearer realm="horsies"'


def is_open(options: MetricsOptions, endpoint: str, authorization: str) -> bool:
    """Return whether a request may read ``endpoint``, given its ``Authorization`` header ("" if it has none)."""
    if endpoint in options.public:
        return True
    scheme, _, token = authorization.partition(" ")
    if not options.token or scheme.lower() != "bearer":
        return False
    return compare_digest(token.strip().encode(), options.token.encode())
