"""The reaper: puts right what dead workers and passed deadlines have left behind."""

from .duties import DutyReport, run_pass

__all__ = ["DutyReport", "run_pass"]
