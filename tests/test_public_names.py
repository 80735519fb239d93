"""The public names: those that ``public_names.txt`` lists. Other modules and names may change in any release.

``UPDATE_PUBLIC_NAMES=1`` rewrites the list. A name that disappears from it is a change that a release must announce.
"""

from __future__ import annotations

import ast
import inspect
import os
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import horsies_django
from tests.conftest import ROOT

pytestmark = pytest.mark.once

LIST = Path(__file__).parent / "public_names.txt"

MODULES = [
    "horsies_django",
    "horsies_django.admin",
    "horsies_django.backend",
    "horsies_django.db.online",
    "horsies_django.embedded",
    "horsies_django.exceptions",
    "horsies_django.extras.opentelemetry",
    "horsies_django.inbox",
    "horsies_django.log",
    "horsies_django.middleware",
    "horsies_django.models",
    "horsies_django.ops.deploy_check",
    "horsies_django.ops.diagnosis",
    "horsies_django.ops.health",
    "horsies_django.ops.inspector",
    "horsies_django.results",
    "horsies_django.routers",
    "horsies_django.signals",
    "horsies_django.testing",
    "horsies_django.urls",
]

#: Modules at the top of the package that only Django imports.
FOR_DJANGO = {"admin", "apps", "checks", "migrations", "models", "templatetags", "management"}

#: The folders of the layers, whose modules are internal unless they are in the list.
INTERNAL = {"batches", "core", "db", "enqueue", "extras", "ops", "reaper", "schedules", "steps", "worker", "workflows"}

EXPORTS = [f"{module}.{name}" for module in MODULES for name in sorted(import_module(module).__all__)]


def listed() -> list[str]:
    return [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]


def test_the_list_has_exactly_the_exported_names():
    if os.environ.get("UPDATE_PUBLIC_NAMES"):
        head = [line for line in LIST.read_text().splitlines() if line.startswith("#")] if LIST.exists() else []
        LIST.write_text("\n".join([*head, *EXPORTS, ""]))

    assert listed() == EXPORTS


def test_each_module_at_the_top_is_public_or_internal_or_for_django():
    top = {module.name for module in pkgutil.iter_modules(horsies_django.__path__)}

    assert top - FOR_DJANGO - INTERNAL == {name.split(".")[1] for name in MODULES[1:]} - FOR_DJANGO - INTERNAL


def test_the_package_is_marked_as_typed():
    assert (ROOT / "horsies_django" / "py.typed").is_file()


@pytest.mark.parametrize("path", EXPORTS)
def test_a_public_name_is_documented_and_typed(path):
    module, _, name = path.rpartition(".")
    value = getattr(import_module(module), name)

    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__doc__, path
    assert list(untyped(path, value)) == []


def untyped(path: str, value: object) -> Iterator[str]:
    """Yield the functions of a public name that lack annotations."""
    if inspect.isfunction(value):
        signature = inspect.signature(value)
        parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
        is_missing = [one.annotation for one in parameters].count(inspect.Parameter.empty)
        if is_missing or (signature.return_annotation is inspect.Signature.empty):
            yield f"{path}{signature}"
    elif inspect.isclass(value) and value.__module__.startswith("horsies_django"):
        for name, member in vars(value).items():
            function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
            if not name.startswith("_") and inspect.isfunction(function) and is_ours(function):
                yield from untyped(f"{path}.{name}", function)


def is_ours(function: object) -> bool:
    """Whether a function stands in the package; Django generates some methods of models."""
    return str(getattr(function, "__module__", "")).startswith("horsies_django")


def imports_of(code: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("horsies_django"):
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_the_documentation_imports_public_names_only():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    codes = {path: re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.M | re.S) for path in pages}
    codes |= {path: [path.read_text()] for path in sorted((ROOT / "docs" / "examples").rglob("*.py"))}
    imported = [
        (str(path.relative_to(ROOT)), f"{module}.{name}")
        for path, blocks in codes.items()
        for block in blocks
        for module, name in imports_of(parsable(block))
    ]

    assert len(imported) > 100
    names = {*EXPORTS, *MODULES, "horsies_django.__version__"}
    assert [found for found in imported if found[1] not in names] == []


def parsable(block: str) -> str:
    """Return a block of a page, or only its imports if it is not a whole program."""
    try:
        ast.parse(block)
    except SyntaxError:
        return "\n".join(re.findall(r"^from horsies_django\S* import [\w, ]+$", block, re.M))
    return block


def test_a_module_of_the_list_is_a_module():
    assert all(isinstance(import_module(module), ModuleType) for module in MODULES)
