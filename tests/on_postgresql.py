"""``python -m tests.on_postgresql tests/worker -k drain``: pytest on a PostgreSQL that is started for it.

POSTGRESQL_BIN names the folder with the programs of another version; see ``tests/__main__.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.__main__ import postgres

if __name__ == "__main__":
    with postgres() as url:
        command = [sys.executable, "-m", "pytest", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, "DATABASE_URL": url}, check=False).returncode)
