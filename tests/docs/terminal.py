"""A terminal in which a test types the commands of a page."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import wait_until

#: Commands that run until they are stopped, and what each prints once it works.
ENDLESS = {
    "horsies_worker": "worker ready",
    "horsies_reaper": "reaper duty='expired overdue tasks'",
    "horsies_scheduler": "schedule sent",
    "runserver": "Starting development server at http://127.0.0.1:8000/",
}

#: What ``runserver`` prints if another program has its port.
PORT_IN_USE = "That port is already in use"

#: Seconds that a command may take; pip may have to download.
LIMIT = 300

#: What is typed ahead, for a command that asks.
ANSWERS = {"shell": "exit()\n"}
YES = "y\n"

#: Prefixes of variables that the developer's shell may have and a reader's has not.
NOT_INHERITED = ("COV_", "DATABASE_URL", "DJANGO_", "HORSIES_", "PYTEST_", "PYTHON", "TEST_", "VIRTUAL_ENV")


def clean_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a new terminal. Its ``python3`` is the Python of these tests, without their packages."""
    programs = folder / "programs"
    programs.mkdir()
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys._base_executable)} "$@"\n')
    python.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    path = [entry for entry in os.environ["PATH"].split(os.pathsep) if entry != str(Path(sys.executable).parent)]
    return {
        **inherited,
        "PATH": os.pathsep.join([str(programs), *path]),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUNBUFFERED": "1",  # as at a terminal
    }


def endless_name(command: str) -> str | None:
    """Return the name of a Django command that runs until it is stopped, if this is one."""
    words = shlex.split(command, comments=True)
    if {"--once", "--drain"}.intersection(words):
        return None
    return next((word for word in words if word in ENDLESS), None)


class Program:
    """A running command of a terminal."""

    def __init__(self, script: str, folder: Path, environment: Mapping[str, str], typed: str = "") -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._keyboard, stdin = pty.openpty()  # some commands ask only at a terminal
        os.write(self._keyboard, typed.encode())
        self.process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=folder,
            env=dict(environment),
            stdin=stdin,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(stdin)

    @property
    def output(self) -> str:
        """Return the output so far."""
        return os.pread(self._output.fileno(), os.fstat(self._output.fileno()).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        """Kill what still runs."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
        os.close(self._keyboard)
        self._output.close()


class Terminal:
    """Runs one line after another. Each begins in the folder, and with the variables, that the one before has left."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._state = tempfile.NamedTemporaryFile(prefix="terminal-")  # noqa: SIM115  # lives as long as the terminal
        self._begin = f'[ -s {self._state.name} ] && . {self._state.name}; cd "$PWD" || exit\n'

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._state.close()

    def run(self, line: str) -> str:
        """Run a line and return its output; fail the test if its exit status is not 0."""
        script = f"{self._begin}trap 'export -p > {self._state.name}' EXIT\n{line}\n"
        typed = next((ANSWERS[word] for word in shlex.split(line, comments=True) if word in ANSWERS), YES)
        program = Program(script, self._folder, self._environment, typed)
        try:
            status = program.process.wait(LIMIT)
            assert status == 0, f"{line}\nexit status {status}\n{program.output}"
            return program.output
        except subprocess.TimeoutExpired:
            pytest.fail(f"{line}\nruns for more than {LIMIT} s\n{program.output}")
        finally:
            program.close()

    @contextmanager
    def start(self, line: str, stop: signal.Signals = signal.SIGTERM) -> Iterator[Program]:
        """Run a line that does not end; yield once it works. Then stop it; its exit status must be 0."""
        name = endless_name(line)
        assert name
        program = self._started(line, name)
        try:
            yield program
            if stop == signal.SIGINT:
                os.killpg(program.process.pid, stop)  # as Ctrl-C does
            else:
                program.process.send_signal(stop)
            status = program.process.wait(60)
            assert status == 0, f"{line}\nexit status {status}\n{program.output}"
        except BaseException:
            print(f"output of {line}:\n{program.output}")  # pytest shows it
            raise
        finally:
            program.close()

    def _started(self, line: str, name: str) -> Program:
        """Start a line and wait until it works; wait longer if another program has its port."""

        def start() -> Program | None:
            program = Program(f"{self._begin}exec {line}", self._folder, self._environment)
            try:
                wait_until(
                    lambda: ENDLESS[name] in program.output or program.process.poll() is not None,
                    60,
                    f"{line} prints {ENDLESS[name]!r}",
                )
                if program.process.poll() is None:
                    return program
                if PORT_IN_USE not in program.output:
                    pytest.fail(f"{line}\nends with status {program.process.returncode}\n{program.output}")
            except BaseException:
                program.close()
                raise
            program.close()
            return None

        started: Program = wait_until(start, 120, f"{line}: its port is free")
        return started
