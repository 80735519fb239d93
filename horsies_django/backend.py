"""The backend that ``TASKS["default"]["BACKEND"]`` names: ``"horsies_django.backend.HorsiesBackend"``."""

from .enqueue.backend import HorsiesBackend

__all__ = ["HorsiesBackend"]
