"""The signatures of functions that call another function with the arguments that they get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.once

#: Functions with documented options of their own beside the arguments that they forward.
WITH_OPTIONS = {"step", "astep"}


@pytest.mark.slow
def test_a_signature_that_forwards_arguments_takes_its_own_by_position_only():
    texts = {file: file.read_text() for file in (ROOT / "horsies_django").rglob("*.py")}
    trees = {file: ast.parse(text) for file, text in texts.items() if re.search(r"\*\*\w+: ", text)}
    wrong = {f"{file}:{node.lineno} {node.name}" for file, tree in trees.items() for node in forwarding(tree)}

    assert wrong == set(), "a keyword of that name does not reach the function: put a / behind the parameters"


def forwarding(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield each function that forwards ``*args, **kwargs`` and has parameters with a name that these could have.

    A call of super() is left out: Django decides on the signature of its methods.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not (node.args.args or (node.args.kwonlyargs and node.name not in WITH_OPTIONS)):
            continue
        if node.args.vararg is not None and node.args.kwarg is not None:
            calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and not is_of_super(call)]
            if any(passes(call, node.args.kwarg.arg) for call in calls):
                yield node


def passes(call: ast.Call, name: str) -> bool:
    unpacked = [keyword.value for keyword in call.keywords if keyword.arg is None]
    return any(isinstance(value, ast.Name) and value.id == name for value in unpacked)


def is_of_super(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
            return True
    return False
