"""Lists the names of Django that the package uses and that Django's documentation does not describe.

Run with ``python -m tests.private_names``. mypy says where each name is defined. pip downloads the source distribution
of the latest supported Django, or of another one that an argument names (``"django==6.2a1"``), for its documentation.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mypy import build, main, nodes, types

PACKAGE = "horsies_django"

#: What describes a name in the documentation: a directive, a role, or code in the text.
_DESCRIBED = re.compile(
    r"^\s*\.\. (?:\w+:)?\w+:: +([\w.]+)|:(?:attr|class|data|djadmin|exc|func|meth|mod):`[^`]*?([\w.]+)(?:\(\))?>?`"
    r"|``([\w.]+)(?:\(.*?\))?``",
    re.MULTILINE,
)


def documented_names(django: str) -> set[str]:
    """Return the last parts of all names that the documentation of this requirement of pip describes."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-q", "--no-deps", "--no-binary", ":all:", "--ignore-requires-python", "--pre", "-d", folder]
        subprocess.run([sys.executable, "-m", "pip", "download", *flags, django], check=True)
        (path,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(path) as archive:
            members = [member for member in archive if re.search(r"/docs/(ref|topics|howto|faq)/.*\.txt$", member.name)]
            pages = [file.read().decode() for member in members if (file := archive.extractfile(member))]
    names = {name for page in pages for match in _DESCRIBED.findall(page) for name in match if name}
    return {name.rpartition(".")[2] for name in names}


def owners(of: Any) -> Iterator[nodes.TypeInfo]:
    """Yield the classes that a type may be of, or that it is itself."""
    match of:
        case types.Instance():
            yield of.type
        case types.UnionType():
            for item in of.items:
                yield from owners(types.get_proper_type(item))
        case types.TypeType():
            yield from owners(types.get_proper_type(of.item))
        case types.TypeVarType():
            yield from owners(types.get_proper_type(of.upper_bound))
        case types.FunctionLike() if of.is_type_obj():
            yield of.type_object()


def defining(classes: Sequence[nodes.TypeInfo], name: str) -> Iterator[str]:
    """Yield the full name of an attribute, by the first of the classes that defines it; nothing if none does."""
    yield from [f"{base.fullname}.{name}" for base in classes if name in base.names][:1]


def used_names() -> Iterator[str]:
    """Yield the full names that the package reads, sets, imports or overrides, some of them more than once."""
    sources, options = main.process_options(["-p", PACKAGE, "--no-incremental"])
    options.export_types = options.preserve_asts = True
    result = build.build(sources, options)
    for node in result.types:  # of other packages, too, which do not use Django
        if isinstance(node, nodes.MemberExpr):
            for owner in owners(types.get_proper_type(result.types.get(node.expr))):
                yield from defining(owner.mro, node.name)
    for module, tree in result.files.items():
        if module.partition(".")[0] == PACKAGE:
            yield from names_of(tree)


def names_of(tree: nodes.MypyFile) -> Iterator[str]:
    """Yield the full names that a file imports, and those that its classes override."""
    for statement in tree.imports:
        if isinstance(statement, nodes.ImportFrom):
            yield from (f"{statement.id}.{name}" for name, _ in statement.names)
    for _, symbol, _ in tree.local_definitions():
        if isinstance(symbol.node, nodes.TypeInfo):
            for name in symbol.node.names:
                yield from defining(symbol.node.mro[1:], name)


def private_names(django: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each name of Django that is not documented there, and the files with its last part."""
    documented = documented_names(django)
    files = {str(path): path.read_text() for path in Path(PACKAGE).rglob("*.py")}
    for name in sorted(set(used_names())):
        last = name.rpartition(".")[2]
        if name.startswith("django.") and not last.startswith("__") and last not in documented:
            using = [path for path, text in files.items() if re.search(rf"\b{last}\b", text)]
            if using:
                yield name, sorted(using)


if __name__ == "__main__":
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    (supported,) = (each for each in project["dependencies"] if each.lower().startswith("django>"))
    names = dict(private_names(sys.argv[1] if len(sys.argv) > 1 else supported))
    for name, files in names.items():
        print(name, *files)
    print(f"{len(names)} names of Django are private")
