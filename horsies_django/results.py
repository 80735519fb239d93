"""The result of a task, with a value or an error, and the package's own error codes."""

from .core.results import ContractCode, OperationalCode, OutcomeCode, RetrievalCode, TaskError, TaskResult

__all__ = ["ContractCode", "OperationalCode", "OutcomeCode", "RetrievalCode", "TaskError", "TaskResult"]
