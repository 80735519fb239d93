"""Checks of imports beyond import-linter's: cycles, imports by a string, Django's compiler outside of ``db``, and what
only some operating systems have outside of the modules for it.

Run with ``python -m tests.imports``.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp

from tests.platforms import sitecustomize as systems

PACKAGE = "horsies_django"

#: The most files that an import cycle may have, all of one folder.
MAX_CYCLE = 4

#: Calls that import what a string names, and the modules whose purpose that is: the settings and the apps name those.
BY_STRING = {"import_module", "import_string", "__import__", "get_model"}
MAY_IMPORT_BY_STRING = {
    PACKAGE: "its own names, when first used; it also imports them for type checkers",
    f"{PACKAGE}.apps": "the modules of each app, and those of OPTIONS",
    f"{PACKAGE}.core.middleware": "the middleware that OPTIONS names",
    f"{PACKAGE}.core.option_parsers": "the functions that OPTIONS names",
    f"{PACKAGE}.db.row_key": "the models of installed apps, which are imported already",
    f"{PACKAGE}.db.online": "the models of a migration's state, which are classes of no module",
}

#: Django's private compiler, which only this package may import, under TYPE_CHECKING too.
COMPILER = "django.db.models.sql"
MAY_IMPORT_COMPILER = f"{PACKAGE}.db"

#: The module that has a fallback for what only some operating systems have, and those that need POSIX, which it names.
MAY_DEPEND_ON_THE_SYSTEM = {
    f"{PACKAGE}.core.platform",
    f"{PACKAGE}.core.process_identity",  # without /proc, no process has provably ended
    *(f"{PACKAGE}.worker.{name}" for name in "supervisor spawner forkserver child state_files fork_safety".split()),
}
OF_A_SYSTEM = {
    *("sys.platform", "os.name"),
    *(
        f"{module.__name__}.{name}"
        for names_by_module in (systems.NOT_ON_MACOS, systems.NOT_ON_WINDOWS)
        for module, names in names_by_module.items()
        for name in names.split()
    ),
}


def cycles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return the sets of modules that can reach each other, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            if imported not in number:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], number[imported])
        if lowest[module] == number[module]:
            start = stack.index(module)
            if len(cycle := stack[start:]) > 1:
                found.append(sorted(cycle))
            del stack[start:]

    sys.setrecursionlimit(10_000)
    for module in sorted(graph.modules):
        if module not in number:
            visit(module)
    return sorted(found, key=len, reverse=True)


def _module_of(path: Path, root: Path) -> str:
    return ".".join(path.with_suffix("").relative_to(root.parent).parts).removesuffix(".__init__")


def forbidden_cycles(found: list[list[str]]) -> Iterator[str]:
    for cycle in found:
        names = ", ".join(cycle)
        if len(cycle) > MAX_CYCLE:
            yield f"a cycle of {len(cycle)} files, at most {MAX_CYCLE}: {names}"
        if len({module.rpartition(".")[0] for module in cycle}) > 1:
            yield f"a cycle through more than one folder: {names}"


def imports_by_string(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*.py")):
        if _module_of(path, root) in MAY_IMPORT_BY_STRING or "migrations" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                if name in BY_STRING and not is_of_a_library(node):
                    yield f"{path}:{node.lineno} imports by a string: {name}()"


def compiler_imports(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*.py")):
        if ".".join(path.parent.parts).startswith(MAY_IMPORT_COMPILER):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = imported_names(node)
            if any(f"{name}.".startswith(f"{COMPILER}.") or name.endswith(".SQLCompiler") for name in names):
                yield f"{path}:{node.lineno} imports {COMPILER}; allowed: in {MAY_IMPORT_COMPILER} only"


def uses_of_a_system(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*.py")):
        if _module_of(path, root) in MAY_DEPEND_ON_THE_SYSTEM:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = imported_names(node)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names = [f"{node.value.id}.{node.attr}"]
            if isinstance(node, ast.Constant) and str(node.value).startswith(systems.NO_FOLDERS):
                names = [str(node.value)]
            for name in names:
                if name in OF_A_SYSTEM or name in systems.NO_MODULES or name.startswith(systems.NO_FOLDERS):
                    yield f"{path}:{node.lineno} uses {name}, which some systems lack; see {PACKAGE}.core.platform"


def imported_names(node: ast.AST) -> list[str]:
    """Return the dotted names that an import statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def is_of_a_library(call: ast.Call) -> bool:
    """Whether the name is a literal string, and that of a library that may be missing."""
    name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    return isinstance(name, str) and name.partition(".")[0] != PACKAGE


def main() -> int:
    graph = grimp.build_graph(PACKAGE)
    found = cycles(graph)
    importers = graph.find_modules_that_directly_import(PACKAGE)
    problems = [
        *(f"{module} imports {PACKAGE} itself, which is above it" for module in sorted(importers)),
        *forbidden_cycles(found),
        *imports_by_string(Path(PACKAGE)),
        *compiler_imports(Path(PACKAGE)),
        *uses_of_a_system(Path(PACKAGE)),
    ]
    print("\n".join(problems), end="\n" if problems else "")
    print(f"{len(graph.modules)} modules; {len(found)} cycles, the largest of {max(map(len, found), default=0)} files")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
