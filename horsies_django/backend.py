"""The backend that ``TASKS["default"]["BACKEND"]`` names: ``"horsies_django.backend.HorsiesBackend"``."""

from .core.backends import horsies_backend
from .enqueue.backend import HorsiesBackend

__all__ = ["HorsiesBackend", "horsies_backend"]
