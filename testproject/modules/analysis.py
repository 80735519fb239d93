"""Counts definitions and docstrings in the source of a Python module."""

from __future__ import annotations

import ast
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

STDLIB = Path(sysconfig.get_paths()["stdlib"])
BROKEN = Path(__file__).parent / "broken"

# Test directories have intentionally broken files; installed packages are not part of the standard library.
_EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Report:
    """Counts for one module; ``documented`` of ``documentable`` definitions have a docstring."""

    lines: int = 0
    functions: int = 0
    classes: int = 0
    imports: int = 0
    documentable: int = 0
    documented: int = 0

    def __add__(self, other: Report) -> Report:
        own, others = asdict(self), asdict(other)
        return Report(**{name: own[name] + others[name] for name in own})

    @property
    def coverage(self) -> float:
        """The share of definitions with a docstring, in per cent."""
        return 100 * self.documented / self.documentable if self.documentable else 0.0


def sources() -> list[Path]:
    """Return all modules of the standard library, and a few files that do not parse."""
    modules = (path for path in STDLIB.rglob("*.py") if not _EXCLUDED & set(path.relative_to(STDLIB).parts))
    return sorted(modules) + sorted(BROKEN.glob("*.py.txt"))


def analyse(path: Path) -> Report:
    """Count the definitions in a file. Raises SyntaxError or ValueError if it is not Python."""
    source = path.read_bytes()
    tree = ast.parse(source, filename=str(path))
    functions = classes = imports = documented = 0
    definitions: list[ast.AST] = [tree]
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions += 1
                definitions.append(node)
            case ast.ClassDef():
                classes += 1
                definitions.append(node)
            case ast.Import() | ast.ImportFrom():
                imports += len(node.names)
    documented = sum(ast.get_docstring(node, clean=False) is not None for node in definitions)  # type: ignore[arg-type]
    return Report(len(source.splitlines()), functions, classes, imports, len(definitions), documented)
