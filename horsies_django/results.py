"""What a task ends with: a value or an error, and the error codes that the package itself uses."""

from .core.results import ContractCode, OperationalCode, OutcomeCode, RetrievalCode, TaskError, TaskResult

__all__ = ["ContractCode", "OperationalCode", "OutcomeCode", "RetrievalCode", "TaskError", "TaskResult"]
