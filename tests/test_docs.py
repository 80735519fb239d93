"""The pages of the documentation agree with the code."""

import argparse
import ast
import dataclasses
import importlib
import itertools
import re
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec

import pytest
from django.core.management import load_command_class

import horsies_django
from horsies_django import (
    ContractCode,
    Cron,
    Daily,
    Every,
    HorsiesTask,
    Hourly,
    Join,
    Monthly,
    OperationalCode,
    OutcomeCode,
    RetrievalCode,
    RetryPolicy,
    TaskStatus,
    Weekly,
    WorkflowHandle,
    WorkflowStatus,
    WorkflowTaskStatus,
)
from horsies_django.core import options
from horsies_django.core.lifecycle import Transition
from horsies_django.core.workflow_errors import DefinitionErrorCode, WorkflowCode
from horsies_django.enqueue.node_factories import TaskNodeOptions
from horsies_django.models.schedule import CatchUp, Overlap
from horsies_django.reaper.duties import DUTIES
from horsies_django.schedules.declaration import ScheduleOptions
from horsies_django.workflows.definition_registry import DefinitionOptions, definition_registry
from horsies_django.workflows.workflow import WorkflowKeywords
from tests.conftest import ROOT

PAGES = {path.stem: path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}


@pytest.mark.parametrize("page", PAGES)
def test_the_python_blocks_of_a_page_parse(page):
    for block in re.findall(r"^```python\n(.*?)^```$", PAGES[page], re.M | re.S):
        ast.parse(block)


@pytest.mark.parametrize(
    "kind",
    [options.RecoveryOptions, options.RetentionOptions, options.WorkerOptions, options.MetricsOptions, options.Options],
)
def test_the_settings_page_has_every_option_with_its_default(kind):
    for entry in dataclasses.fields(kind):
        line, *_ = [line for line in PAGES["settings"].splitlines() if re.match(rf"\| [^|]*`{entry.name}`", line)]
        if isinstance(entry.default, str | int | float | None | bool):
            assert f"`{entry.default!r}`".replace("'", '"') in line


@pytest.mark.parametrize(
    ("command", "page"),
    [
        ("horsies_worker", "worker"),
        ("horsies_reaper", "worker"),
        ("horsies_prune", "retention"),
        ("horsies_scheduler", "schedules"),
        ("horsies_schedule", "schedules"),
        ("horsies_status", "worker"),
        ("horsies_task", "inspecting"),
        ("horsies_check_deploy", "deploying"),
    ],
)
def test_the_page_of_a_command_names_every_flag(command, page):
    parser = load_command_class("horsies_django", command).create_parser("manage.py", command)
    django = set(load_command_class("django.core", "check").create_parser("manage.py", "check")._option_string_actions)

    for flag in _flags(parser) - django - {"--skip-checks"}:
        assert flag in PAGES[page], flag


def _flags(parser):
    below = (action.choices.values() for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return set(parser._option_string_actions).union(*map(_flags, itertools.chain.from_iterable(below)))


@pytest.mark.parametrize("family", [OperationalCode, OutcomeCode, RetrievalCode, ContractCode])
def test_the_errors_page_names_every_code(family):
    assert all(f"`{code}`" in PAGES["errors"] for code in family)


def test_the_states_page_names_every_state():
    assert all(status in PAGES["states"] for status in TaskStatus)


@pytest.mark.parametrize(
    ("module", "page"), [("core.lifecycle", "states"), ("workflows.lifecycle", "workflows-semantics")]
)
def test_a_page_lists_every_transition_in_the_order_of_the_code(module, page):
    values = vars(importlib.import_module(f"horsies_django.{module}")).values()

    assert transitions_on(page) == [str(value) for value in values if isinstance(value, Transition)]


def transitions_on(page):
    pattern = r"^<!-- the table of .*? -->\n\n(.*?)\n\n<!-- end of the table -->$"
    rows = (row for table in re.findall(pattern, PAGES[page], re.M | re.S) for row in table.splitlines()[2:])
    return [row.split("|")[1].strip() for row in rows]


def test_the_workflow_semantics_page_names_every_state_join_and_code():
    terms = [*WorkflowStatus, *WorkflowTaskStatus, *(one.name for one in Join), *(f"`{code}`" for code in WorkflowCode)]

    assert all(term in PAGES["workflows-semantics"] for term in terms)


def test_the_recovery_page_has_every_duty_and_every_option_with_its_default():
    assert all(f"| `{duty}` |" in PAGES["recovery"] for duty in DUTIES)
    for entry in dataclasses.fields(options.RecoveryOptions):
        if entry.name != "heartbeat_retention_hours":
            assert f"| `{entry.name}` | `{entry.default!r}` |" in PAGES["recovery"]


def test_the_retries_page_names_every_field_of_a_policy():
    assert all(f"| `{entry.name}` |" in PAGES["retries"] for entry in dataclasses.fields(RetryPolicy))


def test_the_tasks_page_names_every_option_of_a_task():
    options = {entry.name for entry in dataclasses.fields(HorsiesTask)} - {"func", "run_after"}

    assert all(f"`{name}`" in PAGES["tasks"] for name in options if not name.startswith("_"))


def test_the_schedules_page_names_every_option_and_pattern():
    names = {*ScheduleOptions.__optional_keys__, *CatchUp.values, *Overlap.values}

    assert all(f"`{name}`" in PAGES["schedules"] for name in names)
    assert all(f"{kind.__name__}(" in PAGES["schedules"] for kind in (Every, Cron, Hourly, Daily, Weekly, Monthly))


def test_the_workflows_page_names_every_option_and_definition_error():
    options = {*TaskNodeOptions.__optional_keys__, *WorkflowKeywords.__optional_keys__, "output"}
    options |= {entry.name for entry in dataclasses.fields(DefinitionOptions)}

    assert all(f"`{name}`" in PAGES["workflows"] for name in options)
    assert all(f"`{code}`" in PAGES["workflows"] for code in DefinitionErrorCode)


def test_the_workflows_page_names_every_method_of_a_handle():
    methods = {name for name, value in vars(WorkflowHandle).items() if callable(value) and not name.startswith("_")}

    assert len(methods) >= 10
    assert all(f"`{name}(" in PAGES["workflows"] for name in methods)


def test_links_between_pages_lead_to_existing_pages():
    for page, text in PAGES.items():
        folder = ROOT if page == "README" else ROOT / "docs"
        for target in re.findall(r"\]\(([\w./-]+\.md)[)#]", text):
            assert (folder / target).is_file(), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_each_reference_of_a_page_has_its_link(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", PAGES[page], flags=re.M | re.S)

    assert set(re.findall(r"\]\[([\w-]+)\]", text)) == set(re.findall(r"^\[([\w-]+)\]: ", text, re.M))


def test_the_checks_page_names_every_check():
    ids = [
        check
        for name in ("checks.py", "enqueue/backend_checks.py")
        for check in re.findall(r"horsies\.[EW]\d+", (ROOT / "horsies_django" / name).read_text())
    ]

    assert set(ids) == set(re.findall(r"horsies\.[EW]\d+", PAGES["checks"]))


def test_the_versions_page_lists_the_public_names():
    names = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| [\w ]+ \| (`\w+`.*) \|$", PAGES["versioning"], re.M)))

    assert sorted(names) == sorted(horsies_django.__all__)


def test_the_readme_begins_with_its_two_commands():
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGES["README"], re.M | re.S)

    assert all(block.count("\n") == 1 for block in blocks[:2])
    assert "manage.py demo" in blocks[0]
    assert "-m tests" in blocks[1]


def test_the_readme_shows_how_to_install_the_package_before_how_to_use_it():
    section = PAGES["README"].partition("## Use it\n\n")[2]

    assert section.startswith("```sh\npip install horsies-django\n```\n")


EXAMPLES = [
    *(pytest.param(page, marks=pytest.mark.slow) for page in ("workflows-tutorial", "from-celery")),
    *("from-asynq", "from-umbral", "unique"),
]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_of_a_page_give_the_results_that_it_shows(page, drain):
    """Run a page from top to bottom, in its own module, and a worker before each line with an arrow."""
    name = f"page_{page.replace('-', '_')}"
    # With a loader: Python 3.15 warns of a module without one when it prints a traceback.
    module = module_from_spec(ModuleSpec(name, SourceFileLoader(name, f"{name}.py")))
    sys.modules[name] = module
    definitions = dict(definition_registry.definitions)
    try:
        for block in re.findall(r"^```python\n(.*?)^```$", PAGES[page], re.M | re.S):
            for statement in ast.parse(block).body:
                _run(statement, block.splitlines()[statement.end_lineno - 1], vars(module), drain)
    finally:
        del sys.modules[name]
        definition_registry.definitions = definitions


def test_each_list_of_tasks_on_the_page_about_asynq_has_the_flags_that_asynq_requires():
    commands = re.findall(r"`(asynq task ls[^`]*)`", PAGES["from-asynq"])

    assert len(commands) == 3
    assert [command for command in commands if not ("--queue=" in command and "--state=" in command)] == []


def _run(statement, line, names, drain):
    expected = re.search(r"  # → (.*)$", line)
    if expected is None:
        exec(compile(ast.Module([statement], []), line, "exec"), names)
    else:
        drain()
        given = eval(compile(ast.Expression(statement.value), line, "eval"), names)
        assert given == eval(expected[1], names), line


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_a_page_for_contributors_names_files_that_exist(page):
    text = (ROOT / page).read_text()
    folders = "|".join(["horsies_django", "tests", "docs", *(f.name for f in (ROOT / "horsies_django").iterdir())])
    named = re.findall(rf"[`\s]((?:{folders})/[\w/.]*)[`\s]", text)

    assert len(named) > 5
    assert [name for name in named if not any((ROOT / at / name).exists() for at in (".", "horsies_django"))] == []
