"""Explain why a task is not running, from what the tables say.

Only conditions that actually hold the task back are reported. Every statement reads a bounded number of rows by an
index.
"""

from .reason import Reason, ReasonCode, RelatedRow
from .retries import why_not_retried
from .waiting import reasons_of, reasons_of_node

__all__ = ["Reason", "ReasonCode", "RelatedRow", "reasons_of", "reasons_of_node", "why_not_retried"]
