"""Mutation testing: ``python -m tests.mutants`` breaks the code in 200 places, one at a time, and runs the tests.

A first run of the tests records which tests execute which lines. The mutants are a random sample, with a fixed seed, of
the code that decides the states of tasks. For each mutant it runs the tests that execute the changed lines, within a
budget: on PostgreSQL and, if they pass, on SQLite, for which some of the code exists. A mutant is caught when a test
fails or hangs. The report shows each surviving mutant with its diff, which either reveals a gap in the tests or has no
observable effect, and each that hangs.

It requires the extra ``mutants``, and starts a PostgreSQL server for each of two sandboxes.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final
from xml.etree import ElementTree

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from parso.python.tree import PythonNode
from parso.tree import BaseNode

from tests.__main__ import postgres

ROOT: Final = Path(__file__).parent.parent

#: The code to mutate: transitions, the claim, the limiters, the engine and the reaper.
CODE: Final = (
    "horsies_django/core/lifecycle.py",
    "horsies_django/models/transitions.py",
    "horsies_django/models/claim",
    "horsies_django/models/*limiter.py",
    "horsies_django/models/release_blocked.py",
    "horsies_django/workflows/engine",
    "horsies_django/workflows/lifecycle.py",
    "horsies_django/reaper",
)

#: The operators of cosmic-ray that rarely create equivalent mutants.
OPERATORS: Final = (
    *("AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse"),
    *("ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "BitOr_BitAnd", "BitAnd_BitOr")),
    *(
        f"ReplaceComparisonOperator_{pair}"
        for pair in ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is")
    ),
)

#: Queryset methods whose keyword arguments are conditions, or the columns of an update.
QUERY_METHODS: Final = frozenset({"filter", "exclude", "update", "Q", "get"})

#: Seconds of tests to run for a mutant, and seconds after which they count as hanging.
BUDGET: Final = 45.0
HANGS_AFTER: Final = 120.0


class DropKeyword(Operator):  # type: ignore[misc]  # the library has no types
    """``filter(status=…, claim=…)`` → ``filter(status=…)``: drops a condition or a column."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        for argument in self._keywords(node):
            yield argument.start_pos, argument.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        argument = list(self._keywords(node))[index]
        argument_list = node.children[1]
        if argument_list is argument:
            node.children = [node.children[0], node.children[2]]
            return node
        index_in_list = argument_list.children.index(argument)
        del argument_list.children[index_in_list : index_in_list + 2]
        return node

    def _keywords(self, node: Any) -> Iterator[Any]:
        if node.type != "trailer" or len(node.children) != 3 or node.children[0].value != "(":
            return
        before = node.parent.children[node.parent.children.index(node) - 1]
        if before.get_last_leaf().value not in QUERY_METHODS:
            return
        argument_list = node.children[1]
        for child in argument_list.children if argument_list.type == "arglist" else [argument_list]:
            if child.type == "argument" and getattr(child.children[1], "value", "") == "=":
                yield child

    @classmethod
    def examples(cls) -> Sequence[Any]:
        return ()


class DropStatement(Operator):  # type: ignore[misc]  # the library has no types
    """Replaces a call whose result is unused with ``pass``."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and node.children[0].type in ("atom_expr", "power"):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        call = node.children[0]
        node.children[0] = PythonNode("name", get_ast(f"{call.get_first_leaf().prefix}pass").children[:1])
        return node

    @classmethod
    def examples(cls) -> Sequence[Any]:
        return ()


@dataclass(frozen=True)
class Mutant:
    """One change in one file."""

    path: Path
    operator: str
    line: int
    before: str = field(repr=False)
    after: str = field(repr=False)

    @property
    def diff(self) -> str:
        """The change, as a diff without context."""
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))

    @property
    def lines(self) -> range:
        """The line numbers that it changes."""
        matcher = difflib.SequenceMatcher(None, self.before.splitlines(), self.after.splitlines(), autojunk=False)
        changed = [block for block in matcher.get_opcodes() if block[0] != "equal"]
        return range(changed[0][1] + 1, max(changed[-1][2], changed[0][1] + 1) + 1)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file, without those of annotations, decorators, module constants and ``strict=True``."""
    code = (ROOT / path).read_text()
    source, skipped = code.splitlines(), set(_skipped_lines(ast.parse(code)))
    operators = {name: plugins.get_operator(f"core/{name}")() for name in OPERATORS}
    operators |= {"DropKeyword": DropKeyword(), "DropStatement": DropStatement()}
    for name, operator in operators.items():
        positions = [start for node in ast_nodes(_with_parents(code)) for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(positions):
            if line in skipped or source[line - 1][:column].endswith("strict="):
                continue
            after = MutationVisitor.mutate_code(code, operator, occurrence)
            if after is not None and after != code and _parses(after):
                yield Mutant(path, name, line, code, after)


def _with_parents(code: str) -> BaseNode:
    tree: BaseNode = get_ast(code)
    return tree


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def _skipped_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of signatures, decorators, type-checking blocks and constants: these only tune, or never run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from range(node.lineno, node.body[0].lineno)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.decorator_list:
            yield from range(node.decorator_list[0].lineno, node.lineno)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
    for node in tree.body:
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and value is not None and _is_constant(value):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_constant(value: ast.expr) -> bool:
    """Whether this is a constant, or is computed from constants alone, such as ``timedelta(days=7)``."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return names <= {"timedelta"} and not any(
        isinstance(node, ast.Dict | ast.List | ast.Set) for node in ast.walk(value)
    )


def sample(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return a random sample. A change of the code leaves the mutants of all other lines in it."""

    def draw(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.path} {mutant.operator} {mutant.diff}".encode()).digest()

    return sorted(mutants, key=draw)[:count]


class Coverage:
    """The tests that execute each line, and the duration of each test."""

    def __init__(self, database: Path, report: Path) -> None:
        from coverage import CoverageData

        self._data = CoverageData(str(database))
        self._data.read()
        self.seconds = {
            _node_id(case): float(case.get("time", "0")) for case in ElementTree.parse(report).iter("testcase")
        }

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute a changed line, or else the file: a line may run at import alone.

        Tests of the file that is named after the module come first. The others are ordered so that a few of them
        execute as many different lines of the module as they can: the quickest alone all take its most common path.
        Last come the other tests of their files: these may execute the line in a worker's process.
        """
        by_line = {
            line: {context.partition("|")[0] for context in contexts} & self.seconds.keys()
            for line, contexts in self._data.contexts_by_lineno(str(mutant.path)).items()
        }
        found = set[str]().union(*(by_line.get(line, ()) for line in mutant.lines)) or set[str]().union(
            *by_line.values()
        )
        lines = {test: {line for line, tests in by_line.items() if test in tests} for test in found}
        own = f"/test_{mutant.path.stem}.py::"
        files = {test.partition("::")[0] for test in found}
        siblings = {test for test in self.seconds if test.partition("::")[0] in files or own in test} - found
        return [
            *self._quickest(test for test in found if own in test),
            *self._spread({test: lines[test] for test in sorted(found) if own not in test}),
            *self._quickest(siblings),
        ]

    def _quickest(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds[test], test))

    def _spread(self, lines: dict[str, set[int]]) -> Iterator[str]:
        """Yield the tests, each time the one that executes most further lines for its time; then start over."""
        left, executed = dict(lines), set[int]()

        def gain(test: str) -> float:
            return len(left[test] - executed) / (0.3 + self.seconds[test])

        while left:
            best = max(left, key=gain)
            if executed and not gain(best):
                executed.clear()
                best = max(left, key=gain)
            executed |= left.pop(best)
            yield best


def _node_id(case: ElementTree.Element) -> str:
    """Return pytest's id of a test in a report, which has ``package.module.Class`` and ``test_name``."""
    parts = case.get("classname", "").split(".")
    depth = next(
        depth for depth in range(len(parts), 0, -1) if (ROOT / "/".join(parts[:depth])).with_suffix(".py").exists()
    )
    return "::".join([f"{'/'.join(parts[:depth])}.py", *parts[depth:], case.get("name", "")])


def fit_budget(budget: float, tests: Iterable[str], seconds: dict[str, float]) -> list[str]:
    """Return the first tests that take at most ``budget`` seconds together."""
    chosen: list[str] = []
    for test in tests:
        budget -= seconds[test] + 0.05
        if budget < 0:
            break
        chosen.append(test)
    return chosen


class Sandbox:
    """A copy of the checkout and a PostgreSQL server. It tests one mutant at a time."""

    def __init__(self, stack: ExitStack, number: int) -> None:
        self.root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"mutants-{number}-")))
        shutil.copytree(ROOT, self.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        self.url = stack.enter_context(postgres())

    def pytest(self, url: str, *arguments: str, timeout: float | None = None) -> int | None:
        """Run pytest in the copy; return its exit status, or None if it takes longer than ``timeout`` seconds."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments],
            cwd=self.root,
            env={**os.environ, "DATABASE_URL": url, "PYTHONPATH": str(self.root)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return None

    def is_caught(self, mutant: Mutant, tests: Sequence[str]) -> bool:
        """Return whether one of the tests fails or hangs on a mutant."""
        path = self.root / mutant.path
        path.write_text(mutant.after)
        try:
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()  # Python reuses bytecode if size and mtime in seconds are equal
            for url in (self.url, f"sqlite:///{self.root}/unused.sqlite3"):
                if (status := self.pytest(url, "--create-db", *tests, timeout=HANGS_AFTER)) != 0:
                    if status is None:  # as the load of the machine may have caused
                        print(f"HANGS {mutant.path}:{mutant.line} {mutant.operator}\n{mutant.diff}", flush=True)
                    return True
            return False
        finally:
            path.write_text(mutant.before)


def record(sandbox: Sandbox, folder: Path, jobs: int) -> Coverage:
    """Run the tests once and return their coverage."""
    report, data = folder / "tests.xml", folder / "coverage"
    rc = folder / "coveragerc"
    rc.write_text(f"[run]\ndata_file = {data}\nrelative_files = true\nsource = horsies_django\nbranch = false\n")
    parallel = ["-n", str(jobs)] if jobs > 1 else []
    subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                "not slow and not alone",
                *parallel,
            ),
            *("--cov", "--cov-context=test", f"--cov-config={rc}", "--cov-report=", f"--junitxml={report}", "tests"),
        ],
        cwd=sandbox.root,
        env={**os.environ, "DATABASE_URL": sandbox.url, "PYTHONPATH": str(sandbox.root)},
        check=False,
    )
    return Coverage(data, report)


def main() -> int:
    """Print the surviving mutants and the rate of caught ones; return 1 if it is below 95 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="Number of mutants (200).")
    parser.add_argument("--seed", type=int, default=17, help="Seed of the sample (17).")
    parser.add_argument("--lanes", type=int, default=2, help="Number of mutants to try at a time (2).")
    parser.add_argument("--keep", type=Path, help="Directory for the coverage data; reused if it has some.")
    options = parser.parse_args()
    paths = sorted({path for pattern in CODE for path in _files(pattern)})
    candidates = [mutant for path in paths for mutant in mutants_of(path)]
    chosen = sample(candidates, options.count, options.seed)
    print(f"{len(chosen)} of {len(candidates)} mutants of {len(paths)} files", flush=True)
    started = time.monotonic()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        idle_sandboxes: SimpleQueue[Sandbox] = SimpleQueue()
        sandboxes = [Sandbox(stack, number) for number in range(options.lanes)]
        if (folder / "coverage").exists():
            coverage = Coverage(folder / "coverage", folder / "tests.xml")
        else:
            coverage = record(sandboxes[0], folder, options.lanes)
        for sandbox in sandboxes:
            idle_sandboxes.put(sandbox)
        print(f"{len(coverage.seconds)} tests recorded in {time.monotonic() - started:.0f} s", flush=True)
        ids = folder / "ids"
        ids.write_text("\n".join(coverage.seconds))
        if sandboxes[0].pytest(sandboxes[0].url, "--collect-only", f"@{ids}") != 0:
            sys.exit("pytest does not find all recorded tests: each mutant would count as caught")

        def survives(mutant: Mutant) -> str | None:
            tests = fit_budget(BUDGET, coverage.tests_of(mutant), coverage.seconds)
            if not tests:
                return "no test executes it in pytest's process"
            sandbox = idle_sandboxes.get()
            try:
                return None if sandbox.is_caught(mutant, tests) else f"{len(tests)} tests pass"
            finally:
                idle_sandboxes.put(sandbox)

        caught = 0
        with ThreadPoolExecutor(options.lanes) as pool:
            for number, (mutant, why) in enumerate(zip(chosen, pool.map(survives, chosen), strict=True), 1):
                if why is None:
                    caught += 1
                else:
                    print(f"\nSURVIVED {mutant.path}:{mutant.line} {mutant.operator}: {why}\n{mutant.diff}", flush=True)
                if number % 20 == 0:
                    print(f"{caught} of {number} caught", flush=True)
    minutes = (time.monotonic() - started) / 60
    print(f"\n{caught} of {len(chosen)} caught, {caught / len(chosen):.1%}, in {minutes:.0f} minutes")
    return 0 if caught >= 0.95 * len(chosen) else 1


def _files(pattern: str) -> Iterator[Path]:
    for found in ROOT.glob(pattern):
        yield from (path.relative_to(ROOT) for path in (found.rglob("*.py") if found.is_dir() else [found]))


if __name__ == "__main__":
    sys.exit(main())
