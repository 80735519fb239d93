"""The tasks of peers that import them only after ``django.setup()`` or by path."""
