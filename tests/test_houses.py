"""The import contract in ``pyproject.toml`` keeps the three houses of docs/architecture.md apart."""

import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("importlinter", reason="import-linter comes with the extra 'lint'")


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("worker/store.py", "from ..workflows.engine.advance import Engine", "Houses"),
        ("workflows/control.py", "def f():\n    from ..reaper.duties import DUTIES", "Layers"),
        ("reaper/loop.py", "from ..ops.deploy_check import check_deploy", "Layers"),
    ],
)
def test_an_import_from_another_house_breaks_the_contract(tmp_path, file, line, contract):
    shutil.copytree(ROOT / "horsies_django", tmp_path / "horsies_django")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "horsies_django" / file).open("a") as source:
        source.write(f"\n\n{line}\n")

    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    broken = [text for text in result.stdout.splitlines() if " BROKEN" in text]
    assert result.returncode == 1
    assert contract in [text.partition(":")[0] for text in broken]
