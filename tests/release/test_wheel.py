"""The source distribution and the wheel, built and used outside the checkout."""

from __future__ import annotations

import email.message
import fnmatch
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.conftest import ROOT
from tests.docs.project import make_project, python_block
from tests.release.bounds import classified_pythons, lower_bounds, lowest_python, python_of
from tests.release.installed import clean, run

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Added to the settings of the README, for the pages.
SETTINGS = """
import django

ALLOWED_HOSTS = ["testserver"]
MIDDLEWARE += ["django.middleware.locale.LocaleMiddleware"]
STATIC_ROOT = BASE_DIR / "collected"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"},
}
DEBUG = False
FILES = "django.core.mail.backends.filebased.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": FILES, "OPTIONS": {"file_path": BASE_DIR / "mails"}}}
else:
    EMAIL_BACKEND, EMAIL_FILE_PATH = FILES, BASE_DIR / "mails"
"""

#: Calls the view of the README, as a request would.
BUY = """
import django; django.setup()
from types import SimpleNamespace
from shop.views import buy
print(buy(None, SimpleNamespace(pk=7, save=lambda: None)))
"""

RESULT = """
import django; django.setup()
from horsies_django import TaskHandle
print(TaskHandle({key!r}).get(timeout=0).ok)
"""

LIST_COMMANDS = """
import pkgutil, horsies_django.management.commands as commands
print(*(module.name for module in pkgutil.iter_modules(commands.__path__)))
"""

#: How each command runs in the project.
COMMANDS = {
    "horsies_check_deploy": "",
    "horsies_prune": "--dry-run",
    "horsies_queue": "list",
    "horsies_reaper": "--once",
    "horsies_schedule": "list",
    "horsies_scheduler": "--once",
    "horsies_status": "--json",
    "horsies_task": "list",
    "horsies_worker": "--drain",
}

#: Tests that read files beside the package. They run from the source distribution.
READING_TESTS = ("tests/test_docs.py", "tests/test_requirements.py", "tests/test_deploying.py", "tests/checks")


def files_of(folder: str) -> set[str]:
    """Return the files of a folder of the checkout, without those that git ignores."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        if not any(fnmatch.fnmatch(part, pattern) for part in path.relative_to(ROOT).parts for pattern in ignored)
    }


def names_in(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_the_metadata_is_valid_and_the_readme_renders(distributions, tools):
    run([tools, "-m", "twine", "check", "--strict", *distributions], distributions[0].parent)


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_long_description_has_no_dead_link_and_no_missing_picture(distributions):
    """The project has no public address, so a link to one of its files leads nowhere on a package index."""
    text = metadata_of(distributions[1]).get_payload()
    page = MarkdownIt("commonmark").enable("table").render(text)

    assert re.findall(r"<img", page) == []
    assert [link for link in re.findall(r'href="([^"]*)"', page) if not link.startswith("https://")] == []
    for heading in re.findall(r"^## (.+)$", (ROOT / "README.md").read_text(), re.M):
        assert f"<h2>{heading}</h2>" in page or heading == "Documentation"


def test_the_wheel_has_each_file_of_the_package_and_nothing_else(distributions):
    with zipfile.ZipFile(distributions[1]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == files_of("horsies_django")


def test_the_metadata_of_the_wheel_requires_only_the_runtime_packages(distributions):
    metadata = metadata_of(distributions[1])
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(required) == 5
    assert metadata["Requires-Python"] == f">={lowest_python()}"


def test_the_source_distribution_has_the_files_of_its_tests(distributions):
    folders = [".ci", "benchmarks", "docs", "horsies_django", "testproject", "tests"]
    files = set().union(*(files_of(folder) for folder in folders))
    expected = {name for name in files if not name.endswith(".whl")}  # the wheels of earlier releases

    assert {*expected, "manage.py", "tox.ini", "pyproject.toml", "LICENSE", "README.md"} <= names_in(distributions[0])


@pytest.mark.nightly
def test_tests_run_from_the_source_distribution(distributions, tmp_path):
    with tarfile.open(distributions[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()

    run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *READING_TESTS],
        unpacked,
        clean() | {"DATABASE_URL": f"sqlite:///{tmp_path}/unused.sqlite3"},
    )


@pytest.fixture(scope="module", params=[pytest.param("lowest", marks=pytest.mark.nightly), "highest"])
def installed(request, distributions, install):
    """The wheel with the lowest versions that its metadata allows, or the highest; of Python, the highest installed."""
    versions = [lowest_python()] if request.param == "lowest" else classified_pythons()
    python = next(filter(None, map(python_of, versions)), None)
    if python is None:
        pytest.skip(f"Python {versions[0]} is not installed")
    pins = [f"{name}=={bound}" for name, bound in lower_bounds().items()] if request.param == "lowest" else []
    return install(distributions[1], *pins, extras="[binary,demo,opentelemetry,prometheus,words]", python=python)


@pytest.fixture(scope="module")
def project(installed):
    """The project of the README."""
    folder = make_project(installed.folder / "site", installed.environment)
    (folder / "shop" / "views.py").write_text(python_block("README.md", "# shop/views.py"))
    with (folder / "shop" / "settings.py").open("a") as settings:
        settings.write(SETTINGS)
    installed.environment["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    return folder


def test_the_package_comes_from_the_wheel(installed, project):
    path = Path(installed.evaluate("import horsies_django; print(horsies_django.__file__)", project))
    search = installed.evaluate("import sys; print(*sys.path, sep='\\n')", project).splitlines()

    assert path.is_relative_to(installed.folder / "venv")
    assert (path.parent / "py.typed").is_file()
    assert [entry for entry in search if Path(entry).is_relative_to(ROOT)] == []


def test_the_use_section_of_the_readme_works(installed, project):
    key = installed.evaluate(BUY, project)
    with installed.terminal(project) as terminal:
        terminal.run("python manage.py horsies_worker --drain")

    assert installed.evaluate(RESULT.format(key=key), project) == "1"
    (mail,) = (project / "mails").iterdir()
    assert "Order 7 is on its way." in mail.read_text()


def test_each_command_runs(installed, project):
    assert installed.evaluate(LIST_COMMANDS, project).split() == sorted(COMMANDS)

    with installed.terminal(project) as terminal:
        for command, flags in COMMANDS.items():
            terminal.run(f"python manage.py {command} --help")
            terminal.run(f"python manage.py {command} {flags}")
        with terminal.start("python manage.py horsies_worker --threads 8"):
            pass


def test_the_models_need_no_further_migration(installed, project):
    with installed.terminal(project) as terminal:
        terminal.run("python manage.py makemigrations --check --dry-run horsies_django")
        terminal.run("python manage.py check --fail-level WARNING")


def test_the_admin_has_its_pages_static_files_and_translations(installed, project):
    with installed.terminal(project) as terminal:
        terminal.run("python manage.py collectstatic --no-input -v0")
    shutil.copy(Path(__file__).parent / "pages.py", project)

    assert "static files of the package" in installed.evaluate("import pages", project)


@pytest.mark.nightly
def test_the_demo_runs_on_the_wheel(installed, tmp_path):
    """The demo belongs to the test project, which needs nothing else of the checkout."""
    shutil.copytree(ROOT / "testproject", tmp_path / "testproject", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "manage.py", tmp_path)

    with installed.terminal(tmp_path) as terminal:
        terminal.run("export DJANGO_SETTINGS_MODULE=testproject.settings")
        assert "A plain loop without the queue counts the same." in terminal.run("python manage.py demo")
        assert '"queues"' in terminal.run("python manage.py horsies_status --json")
        assert "deliver" in terminal.run("python manage.py horsies_task list --status failed")
