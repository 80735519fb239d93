"""Building a workflow finds every mistake; each has a code and says what is wrong and what is allowed."""

from datetime import datetime

import django
import pytest
from django.utils import timezone

from horsies_django import (
    InvalidWorkflow,
    Join,
    NodeKey,
    SuccessCase,
    SuccessPolicy,
    TaskNode,
    Workflow,
    WorkflowDefinition,
    sleep,
    wait_for_event,
)
from horsies_django.core.workflow_errors import DefinitionErrorCode
from tests.workflows import jobs
from tests.workflows.conftest import blueprint_of, mistakes_of, only


def test_hrs_001_no_name():
    for name in ("", "   ", None, 5, "x" * 256, "a\0b"):
        (mistake,) = mistakes_of(Workflow, name, jobs.nothing.node()())

        assert mistake.code == DefinitionErrorCode.NO_NAME
        assert "allowed: a text of 1 to 255 characters" in mistake.problem


@pytest.mark.parametrize("nodes", [[], (), {}, iter([])])
def test_hrs_002_no_nodes(nodes):
    assert only("002", nodes).problem == "it has no nodes; allowed: at least one."


@pytest.mark.parametrize(
    ("nodes", "message"), [(5, "nodes is 5"), ("abc", "nodes is 'abc'"), ([jobs.fetch], "nodes has")]
)
def test_hrs_002_nodes_of_the_wrong_type(nodes, message):
    first, *_ = mistakes_of(Workflow, "import", nodes)

    assert first.code == DefinitionErrorCode.NO_NODES
    assert message in first.problem


@pytest.mark.parametrize("node_id", ["", "a b", "ü", "a/b", "x" * 129, 5, "a\n"])
def test_hrs_003_bad_node_id(node_id):
    mistake = only("003", [jobs.nothing.node(node_id=node_id)()])

    assert repr(node_id) in mistake.problem
    assert "allowed: 1 to 128 letters, digits and '_', '-', ':' or '.'" in mistake.problem


def test_hrs_004_duplicate_id():
    mistake = only("004", [jobs.nothing.node(node_id="a")(), jobs.nothing.node()(), jobs.nothing.node(node_id="a")()])

    assert (mistake.node, mistake.problem) == ("a", "2 nodes have this id, at 0, 2; allowed: one.")


def test_hrs_004_one_node_under_two_names():
    node = jobs.nothing.node()()

    assert "it is 'a' and 'b'" in only("004", {"a": node, "b": node}).problem


def test_hrs_005_no_root():
    a, b = jobs.nothing.node()(), jobs.nothing.node()()

    codes = {mistake.code for mistake in mistakes_of(Workflow, "import", [a >> b, b >> a])}

    assert codes == {DefinitionErrorCode.NO_ROOT, DefinitionErrorCode.CYCLE}


def test_hrs_006_unknown_dependency():
    foreign, node = jobs.fetch.node(node_id="far")(url="x"), jobs.nothing.node(node_id="here")

    mistake = only("006", [node(), jobs.nothing.node(node_id="b", waits_for=[foreign])()])

    assert mistake.node == "b"
    assert "'far'" in mistake.problem
    for value in (5, "far", [5], jobs.fetch, {"a": 1}):
        assert only("006", [jobs.nothing.node(waits_for=value)()]).problem.startswith("waits_for ")


def test_hrs_006_an_argument_that_is_a_node_of_another_workflow():
    page = jobs.fetch.node()(url="x")

    assert only("006", [jobs.nothing.node()(), jobs.save.node()(data=page)]).node == "import:1"


def test_hrs_007_cycle():
    a, b, c, root = (jobs.nothing.node(node_id=name)() for name in ("a", "b", "c", "root"))

    mistake = only("007", [root >> a >> b >> c, c >> a])

    assert mistake.problem in {f"it waits for itself: {path}; allowed: no cycle." for path in _rotations("abc")}


def test_hrs_007_every_cycle_is_named():
    a, b, c, d, root = (jobs.nothing.node(node_id=name)() for name in ("a", "b", "c", "d", "root"))

    found = mistakes_of(Workflow, "import", [root >> [a, c, d], a >> b >> a, c >> c])

    assert [mistake.code for mistake in found] == [DefinitionErrorCode.CYCLE] * 2
    assert {frozenset(mistake.problem.split("; ")[0][21:].split(" >> ")) for mistake in found} == {
        frozenset("ab"),
        frozenset("c"),
    }


def _rotations(names):
    return [" >> ".join([*names[i:], *names[:i], names[i]]) for i in range(len(names))]


@pytest.mark.parametrize("option", ["args_from", "values_from"])
def test_hrs_008_a_source_that_is_not_waited_for(option):
    page = jobs.unhinted.node(node_id="page")(value="x")

    mistake = only("008", [page, jobs.unhinted.node(node_id="save", **{option: {"value": page}})()])

    assert mistake.node == "save"
    assert f"{option}['value'] is" in mistake.problem


@pytest.mark.parametrize("sources", [5, [1], "data"])
def test_hrs_008_sources_that_are_not_a_dict(sources):
    assert "allowed: a dict of parameter to node" in only("008", [jobs.count.node(args_from=sources)()]).problem


@pytest.mark.parametrize("source", [5, None, "fetch", [1], []])
def test_hrs_008_a_source_that_is_not_a_node(source):
    assert only("008", [jobs.count.node(values_from={"number": source})()]).problem.startswith("values_from['number']")


def test_hrs_008_a_result_in_values_from():
    page = jobs.fetch.node()(url="x")

    assert (
        "ResultOf"
        in only("008", [page, jobs.count.node(waits_for=page, values_from={"number": page.result})()]).problem
    )


def test_hrs_009_a_context_source_that_is_not_waited_for():
    page = jobs.fetch.node(node_id="page")(url="x")

    mistake = only("009", [page, jobs.with_workflow_context.node(workflow_ctx_from=[page])()])

    assert "workflow_ctx_from has <TaskNode 'page'" in mistake.problem
    assert only("009", [jobs.with_workflow_context.node(workflow_ctx_from=5)()]).problem.startswith(
        "workflow_ctx_from is 5"
    )


def test_hrs_010_no_parameter_for_the_context():
    page = jobs.fetch.node()(url="x")

    mistake = only("010", [page, jobs.count.node(waits_for=page, workflow_ctx_from=page)()])

    assert "tests.workflows.jobs.count has no parameter 'workflow_ctx'" in mistake.problem


def test_hrs_011_output_not_in_the_workflow():
    node, other = jobs.fetch.node(node_id="a")(url="x"), jobs.fetch.node(node_id="b")(url="x")

    for output in (other, "b", NodeKey("b"), 5):
        mistake = only("011", [node], output=output)

        assert (mistake.node, mistake.problem[-11:]) == (None, "allowed: a.")


def test_hrs_012_a_policy_that_names_an_unknown_node():
    node, other = jobs.fetch.node(node_id="a")(url="x"), jobs.fetch.node(node_id="b")(url="x")

    for refs in ({"required": [other]}, {"required": ["b"]}, {"required": ["a"], "optional": [NodeKey("b")]}):
        policy = SuccessPolicy([SuccessCase(**refs)])
        assert "which is not in the workflow; allowed: a." in only("012", [node], success_policy=policy).problem


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (SuccessPolicy([]), "has no cases"),
        (SuccessPolicy([5]), "cases[0] is 5"),
        (SuccessPolicy([SuccessCase([])]), "required is empty"),
        (SuccessPolicy([SuccessCase(["a"], ["a"])]), "'a' as required and as optional"),
        ("a", "allowed: a SuccessPolicy"),
    ],
)
def test_hrs_012_an_invalid_success_policy(policy, message):
    assert message in only("012", [jobs.nothing.node(node_id="a")()], success_policy=policy).problem


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join": "most"}, "join is 'most'; allowed: all, any, quorum."),
        ({"join": 5}, "join is 5"),
        ({"join": Join.QUORUM}, "min_success is None; allowed: from 1 to 2"),
        ({"join": Join.QUORUM, "min_success": 0}, "min_success is 0"),
        ({"join": Join.QUORUM, "min_success": 3}, "min_success is 3; allowed: from 1 to 2"),
        ({"join": Join.QUORUM, "min_success": True}, "min_success is True"),
        ({"join": Join.ANY, "min_success": 1}, "min_success is 1, and join is 'any'"),
        ({"min_success": 1}, "min_success is 1, and join is 'all'"),
    ],
)
def test_hrs_013_invalid_join_or_min_success(options, message):
    a, b = jobs.nothing.node()(), jobs.nothing.node()()

    assert message in only("013", [a, b, jobs.count.node(waits_for=[a, b], **options)()]).problem


def test_hrs_013_join_any_without_dependencies():
    assert "it waits for nothing" in only("013", [jobs.nothing.node(join=Join.ANY)()]).problem


@pytest.mark.parametrize("queue_name", ["", "x" * 101, 5])
def test_hrs_014_invalid_queue_name(queue_name):
    assert only("014", [jobs.nothing.node(queue_name=queue_name)()]).node == "import:0"
    assert only("014", [jobs.nothing.node()() for _ in range(3)], queue_name=queue_name).node is None


@pytest.mark.parametrize("priority", [101, -101, "high", 1.5])
def test_hrs_015_invalid_priority(priority):
    assert only("015", [jobs.nothing.node(priority=priority)()]).node == "import:0"
    assert only("015", [jobs.nothing.node()() for _ in range(3)], priority=priority).node is None


def test_hrs_016_a_definition_without_a_key():
    class Keyless(WorkflowDefinition):
        only = jobs.nothing.node()()

    (mistake,) = mistakes_of(Keyless.build)

    assert (mistake.code, mistake.workflow) == (DefinitionErrorCode.NO_DEFINITION_KEY, "Keyless")
    for key in (5, "", " "):
        assert "definition_key is" in only("016", [jobs.nothing.node()()], definition_key=key).problem


def test_hrs_017_two_definitions_with_one_key():
    class One(WorkflowDefinition):
        only = jobs.nothing.node()()

        class Meta:
            definition_key = "k"

    class Other(One):
        """Inherits its parent's key, because it has no Meta of its own."""

    for definition, other in ((One, Other), (Other, One)):
        (mistake,) = mistakes_of(definition.build)
        assert mistake.code == DefinitionErrorCode.DUPLICATE_DEFINITION_KEY
        assert f"also that of {other._meta.path}" in mistake.problem


def test_hrs_018_a_subworkflow_that_is_abstract_or_has_no_key():
    class Base(WorkflowDefinition):
        only = jobs.nothing.node()()

        class Meta:
            abstract = True

    class Keyless(WorkflowDefinition):
        only = jobs.nothing.node()()

    for definition in (Base, Keyless):
        assert definition.__name__ in only("018", [definition.node()()]).problem


def test_hrs_019_unknown_parameter():
    page = jobs.fetch.node()(url="x")

    assert "has no parameter 'uri'; allowed: tries, url." in only("019", [jobs.fetch.node()(url="x", uri="y")]).problem
    mistake = only("019", [page, jobs.nothing.node(waits_for=page, args_from={"page": page})()])
    assert "has no parameter 'page'; allowed: none." in mistake.problem


def test_hrs_020_missing_parameter():
    assert "jobs.fetch needs 'url'" in only("020", [jobs.fetch.node()()]).problem
    assert "needs 'data'" in only("020", [jobs.with_context.node()()]).problem
    assert "workflow_ctx_from fills it" in only("020", [jobs.with_workflow_context.node()()]).problem


def test_hrs_020_a_parameter_that_may_get_nothing_needs_a_default():
    page, other = jobs.fetch.node()(url="x"), jobs.fetch.node()(url="y")

    def saved(data=page, **options):
        return [page, other, jobs.save.node(waits_for=[page, other], **options)(data=data)]

    assert "'data' has no default" in only("020", saved(join=Join.ANY)).problem
    assert "join is 'quorum'" in only("020", saved(join=Join.QUORUM, min_success=1)).problem
    assert "allow_failed_deps" in only("020", saved(allow_failed_deps=True)).problem
    number = jobs.count.node()()
    Workflow("import", [number, jobs.count.node(join=Join.ANY)(number=number)])
    Workflow("import", [page, jobs.check_outcome.node(allow_failed_deps=True)(outcome=page.result)])
    Workflow("import", [page, other, jobs.report.node(join=Join.ANY)(pages=[page, other])])


def test_hrs_021_a_parameter_given_twice():
    page = jobs.fetch.node()(url="x")

    for option in ("args_from", "values_from"):
        options = {"waits_for": page, option: {"value": page}}
        assert "'value' is an argument" in only("021", [page, jobs.unhinted.node(**options)(value=1)]).problem
    both = jobs.unhinted.node(waits_for=page, args_from={"value": page}, values_from={"value": page})()
    assert "'value' is in args_from and in values_from" in only("021", [page, both]).problem


def test_hrs_022_parameters_for_a_definition_that_takes_none():
    class Plain(WorkflowDefinition):
        only = jobs.nothing.node()()

        class Meta:
            definition_key = "plain"

    page = jobs.fetch.node()(url="x")

    assert "does not override build_with" in only("022", [Plain.node()(day="x")]).problem
    assert "is given 'page'" in only("022", [page, Plain.node()(page=page)]).problem


def test_hrs_023_a_build_with_that_can_not_be_called_by_name():
    class Positional(WorkflowDefinition):
        class Meta:
            definition_key = "positional"

        @classmethod
        def build_with(cls, *days):
            return Workflow("x", jobs.nothing.node()())

    class InstanceMethod(WorkflowDefinition):
        class Meta:
            definition_key = "instance-method"

        def build_with(self):
            raise AssertionError

    class Nothing(WorkflowDefinition):
        class Meta:
            definition_key = "nothing"

        @classmethod
        def build_with(cls):
            return None

    for definition, message in ((Positional, "'*days'"), (Nothing, "returned None")):
        (mistake,) = mistakes_of(definition.build)
        assert mistake.code == DefinitionErrorCode.INVALID_BUILD_WITH
        assert message in mistake.problem
    assert InstanceMethod._meta.errors[0][0] == DefinitionErrorCode.INVALID_BUILD_WITH


def test_hrs_024_a_source_of_the_wrong_type():
    page, number = jobs.fetch.node()(url="x"), jobs.count.node()()

    assert "'data' takes str, and <TaskNode: tests.workflows.jobs.count> gives int" in (
        only("024", [number, jobs.save.node()(data=number)]).problem
    )
    assert (
        "takes str, and args_from gives a TaskResult" in only("024", [page, jobs.save.node()(data=page.result)]).problem
    )
    assert "takes TaskResult, and" in only("024", [page, jobs.check_outcome.node()(outcome=page)]).problem
    assert "a list of nodes gives list" in only("024", [page, jobs.save.node()(data=[page, page])]).problem
    pause = sleep(1)
    assert "gives None" in only("024", [pause, jobs.save.node()(data=pause)]).problem
    mapped = jobs.fetch.map(over=wait_for_event("urls"))
    assert "gives list" in only("024", [mapped.over, mapped, jobs.save.node()(data=mapped)]).problem


def test_hrs_025_an_output_of_the_wrong_type():
    class Import(WorkflowDefinition[str]):
        number = jobs.count.node()()

        class Meta:
            definition_key = "import"
            output = "number"

    (mistake,) = mistakes_of(Import.build)

    assert (mistake.code, mistake.node) == (DefinitionErrorCode.OUTPUT_TYPE, "number")
    assert mistake.problem == "the output gives int, and the definition declares str; allowed: the same."


def test_hrs_026_positional_arguments():
    problem = only("026", [jobs.fetch.node()("https://x")]).problem

    assert "1 arguments by position" in problem
    assert "https://x" not in problem  # the value may be sensitive, because its parameter is unknown


def test_hrs_031_a_value_that_json_can_not_hold():
    for value, message in ((object(), "<class 'object'>"), (float("nan"), "nan"), ("a\0b", "NUL"), ({1, 2}, "set")):
        mistake = only("031", [jobs.unhinted.node()(value=value)])
        assert "'value'" in mistake.problem
        assert message in mistake.problem


def test_hrs_031_a_node_within_a_static_value():
    page = jobs.fetch.node()(url="x")

    for value in (["a", page], {"page": page}, [page, "a"], [page, page.result]):
        assert "'value'" in only("031", [page, jobs.unhinted.node()(value=value)]).problem


def test_hrs_031_too_many_bytes(settings):
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"max_payload_bytes": 1024}}}

    assert "allowed: 1,024" in only("031", [jobs.unhinted.node()(value="x" * 2000)]).problem


@pytest.mark.parametrize("workflow_id", ["abc", 5, ""])
def test_hrs_032_bad_workflow_id(workflow_id):
    (mistake,) = mistakes_of(Workflow("import", [jobs.nothing.node()()]).start, workflow_id)

    assert mistake.code == DefinitionErrorCode.INVALID_WORKFLOW_ID
    assert mistake.problem == f"workflow_id is {workflow_id!r}; allowed: a UUID, or its text."


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"timeout": -1}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"retry_policy": 5}, "retry_policy"),
        ({"good_until": "tomorrow"}, "good_until"),
        ({"retention": "7 fortnights"}, "retention"),
        ({"metadata": 5}, "metadata"),
        ({"metadata": {"a": object()}}, "metadata"),
        ({"allow_failed_deps": "yes"}, "allow_failed_deps"),
    ],
)
def test_hrs_040_invalid_options_of_a_node(options, name):
    mistake = only("040", [jobs.nothing.node(**options)()])

    assert mistake.problem.startswith(name)
    assert "allowed" in mistake.problem or "Unsupported" in mistake.problem


@pytest.mark.parametrize("options", [{"on_error": "stop"}, {"good_until": "tomorrow"}, {"unique_key": ""}])
def test_hrs_040_invalid_options_of_a_workflow(options):
    (name,) = options

    mistake = only("040", [jobs.nothing.node()(), jobs.nothing.node()()], **options)

    assert (mistake.node, mistake.problem.startswith(f"{name} is ")) == (None, True)


def test_hrs_040_options_of_a_task_that_a_node_does_not_take():
    for option, value, hint in (
        ("good_until", timezone.now(), "node(good_until=…)"),
        ("unique_key", "k", "unique_key"),
        ("run_after", timezone.now(), "sleep()"),
    ):
        mistake = only("040", [jobs.nothing.with_options(**{option: value}).node()()])
        assert f"has the option {option}=" in mistake.problem
        assert hint in mistake.problem


@pytest.mark.parametrize(
    "condition",
    [lambda ctx: True, jobs.is_alias, jobs.needs_more, jobs.is_wanted_later, jobs.fetch, "path", len, _rotations("a")],
)
@pytest.mark.parametrize("option", ["run_when", "skip_when"])
def test_hrs_041_invalid_conditions(option, condition):
    mistake = only("041", [jobs.nothing.node(**{option: condition})()])

    assert mistake.problem.startswith(f"{option} is ")
    assert "allowed: a module's own function" in mistake.problem


def test_hrs_042_invalid_maps():
    urls, number = jobs.links.node()(page="x"), jobs.count.node()()

    assert "over is ['a']" in only("042", [jobs.fetch.map(over=["a"])]).problem
    assert "which gives int" in only("042", [number, jobs.fetch.map(over=number)]).problem
    assert "param is 'uri'; allowed: url, tries." in only("042", [urls, jobs.fetch.map(over=urls, param="uri")]).problem
    assert "allowed: none" in only("042", [urls, jobs.nothing.map(over=urls)]).problem
    assert "join is" in only("042", [urls, number, jobs.fetch.map(over=urls, waits_for=number, join=Join.ANY)]).problem


def test_hrs_042_invalid_arguments_of_a_map():
    urls = jobs.links.node()(page="x")

    assert "'url' takes the items" in only("021", [urls, jobs.fetch.map(over=urls, kwargs={"url": "x"})]).problem
    assert "needs 'url'" in only("020", [urls, jobs.fetch.map(over=urls, param="tries")]).problem
    assert "kwargs is 5; allowed: a dict" in only("042", [urls, jobs.fetch.map(over=urls, kwargs=5)]).problem
    assert "'color'" in only("019", [urls, jobs.fetch.map(over=urls, kwargs={"color": "x"})]).problem


@pytest.mark.parametrize("until", [-1, True, "1h", None, float("inf"), 1e12])
def test_hrs_043_invalid_sleeps(until):
    assert only("043", [sleep(until)]).problem.startswith(f"it sleeps {until!r}; allowed: ")


def test_hrs_043_a_sleep_until_a_naive_time():
    assert "an aware datetime" in only("043", [sleep(datetime(2030, 1, 1))]).problem
    for year in (1, 9999):
        until = datetime(year, 1, 1, tzinfo=timezone.get_default_timezone())
        assert "from 1900 to 9997" in only("043", [sleep(until)]).problem


def test_hrs_044_invalid_events():
    for name in ("", 5, "x" * 101, "a\0"):
        assert "its event is" in only("044", [wait_for_event(name)]).problem
    for timeout in (0, -1, "5", True):
        assert "timeout is" in only("044", [wait_for_event("ok", timeout=timeout)]).problem


def test_hrs_045_invalid_backends(settings):
    horsies = settings.TASKS["default"]
    settings.TASKS = {"default": horsies, "dummy": {"BACKEND": dummy_backend(), "QUEUES": []}}

    assert "allowed: 'default' or 'dummy'" in only("045", [jobs.nothing.node()()], backend="nowhere").problem
    assert "DummyBackend; allowed: a HorsiesBackend" in only("045", [jobs.nothing.node()()], backend="dummy").problem


def dummy_backend():
    package = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    return f"{package}.backends.dummy.DummyBackend"


def test_hrs_045_a_node_in_another_database(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES, "elsewhere", settings.DATABASES["default"])
    horsies = {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": []}
    settings.TASKS = {"default": horsies, "far": {**horsies, "OPTIONS": {"database": "elsewhere"}}, "near": horsies}
    far, near = jobs.nothing.with_options(backend="far"), jobs.nothing.with_options(backend="near")

    mistake = only("045", [jobs.nothing.node()(), far.node(node_id="far")()])

    assert mistake.node == "far"
    assert "in the database 'elsewhere', the workflow in 'default'; allowed: one database." in mistake.problem
    assert blueprint_of(Workflow("x", [jobs.nothing.node()(), near.node()()])).nodes[1].backend == "near"
    assert blueprint_of(Workflow("x", [far.node()()])).backend == "far"


def test_hrs_046_a_value_of_the_wrong_type():
    mistake = only("046", [jobs.fetch.node()(url=5)])

    assert "argument 'url' is 5 (int); allowed: str" in mistake.problem


def test_all_mistakes_are_reported_at_once_each_with_its_node_and_a_hint():
    a = jobs.fetch.node(node_id="a", priority=500)(uri="x")
    b = jobs.save.node(node_id="b", join="most", timeout=-1)(data=object())

    found = mistakes_of(Workflow, "", [a, b, b >> a >> b], output="c", on_error="x")

    assert {str(mistake.code)[-3:] for mistake in found} == {
        *("001", "005", "007", "011", "013", "015", "019", "020", "031", "040"),
    }
    assert {mistake.node for mistake in found} == {None, "a", "b"}
    assert all(mistake.workflow == "" and mistake.hint for mistake in found)


@pytest.mark.slow
def test_the_exception_prints_the_first_50_mistakes_and_holds_them_all():
    with pytest.raises(InvalidWorkflow) as caught:
        Workflow("import", [jobs.fetch.node()() for _ in range(1_000)])

    assert len(caught.value.mistakes) == 1_000
    assert len(str(caught.value).splitlines()) == 51
    assert str(caught.value).endswith("… and 950 more (see .mistakes).")


@pytest.mark.parametrize(
    "make",
    [
        jobs.nothing.node,
        WorkflowDefinition.node,
        lambda **options: jobs.nothing.map(over=sleep(1), **options),
        lambda **options: sleep(1, **options),
        lambda **options: wait_for_event("ok", **options),
    ],
)
def test_an_unknown_option_of_a_node_raises_type_error(make):
    with pytest.raises(TypeError, match=r"got unknown option tiemout; allowed: .*node_id"):
        make(tiemout=1)


def test_an_unknown_option_of_a_workflow_raises_type_error():
    with pytest.raises(TypeError, match="unknown option colour; allowed: backend, "):
        Workflow("import", [jobs.nothing.node()()], colour="red")
    with pytest.raises(TypeError, match="unknown option nodes"):
        Workflow("import", [jobs.nothing.node()()]).with_options(nodes=[])


def test_a_valid_node_has_no_errors():
    assert isinstance(node := jobs.fetch.node()(url="x"), TaskNode)
    assert node.errors == ()
