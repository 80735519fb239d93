"""The options of the backend, and the prune command."""

from django.core.management import call_command

from horsies_django.core.compat import task_backends


def options():
    return task_backends["default"].config


def prune(capsys, *flags):
    """Run the prune command and return what it prints."""
    call_command("horsies_prune", *flags, verbosity=0)
    return capsys.readouterr().out
