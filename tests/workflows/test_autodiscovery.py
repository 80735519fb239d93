"""Autodiscovery imports the ``workflows.py`` of each app."""

from __future__ import annotations

from horsies_django import Workflow
from horsies_django.workflows.definition_registry import definition_at
from tests.workflows.runs import start_and_drain, value


def test_the_workflows_of_an_app_are_found(drain):
    definition = definition_at("tests.found")

    handle = start_and_drain(Workflow("finder", {"sub": definition.node()()}), drain)

    assert definition.__module__ == "tests.jobs.workflows"
    assert value(handle, "sub") == 1
