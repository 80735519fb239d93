"""The layout and the drawing of workflow graphs, damaged ones included."""

import random
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.admin.graph.boxes import FOLD_ABOVE, GraphNode, edges_between, fold_nodes
from horsies_django.admin.graph.critical_path import critical_path, path_steps
from horsies_django.admin.graph.drawing import DrawingStyle, draw, edge_path
from horsies_django.admin.graph.labels import truncate
from horsies_django.admin.graph.layout import HEIGHT, MAX_EDGES, WIDTH, compute_layout
from horsies_django.admin.graph.node_timeline import draw_timeline
from horsies_django.admin.graph.ranking import assign_columns, transitive_reduction

pytestmark = pytest.mark.once

START = datetime(2026, 1, 1, tzinfo=UTC)

#: Any edges: cycles, self-loops, duplicates, and positions that do not exist.
any_graph = st.integers(1, 30).flatmap(
    lambda count: st.tuples(
        st.just(count), st.lists(st.tuples(st.integers(-2, count + 2), st.integers(-2, count + 2)), max_size=90)
    )
)
valid_graph = st.integers(2, 30).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(st.tuples(st.integers(0, count - 2), st.integers(1, count - 1)).filter(lambda e: e[0] < e[1])),
    )
)


def node(index, *waits_for, began=None, ended=None, status="COMPLETED", **more):
    times = {
        name: None if second is None else START + timedelta(seconds=second)
        for name, second in (("began", began), ("ended", ended))
    }
    return GraphNode(
        key=index, position=index, node_id=f"n{index}", status=status, waits_for=waits_for, **times, **more
    )


@given(any_graph)
@settings(max_examples=80, deadline=None)
def test_no_two_boxes_overlap_and_each_edge_points_forward(graph):
    count, edges = graph

    layout = compute_layout(count, edges)

    assert len(layout.places) == count
    for (x, y), (other_x, other_y) in ((a, b) for i, a in enumerate(layout.places) for b in layout.places[:i]):
        assert abs(x - other_x) >= WIDTH or abs(y - other_y) >= HEIGHT
    for x, y in layout.places:
        assert 0 <= x <= layout.width - WIDTH
        assert 0 <= y <= layout.height - HEIGHT
    for route in layout.routes:
        xs = [x for x, _ in route.points]
        assert xs == sorted(xs)
        assert xs[0] == layout.places[route.source][0] + WIDTH
        assert xs[-1] == layout.places[route.target][0]
        assert xs[0] < xs[-1]


@given(any_graph)
@settings(max_examples=40, deadline=None)
def test_no_edge_runs_behind_a_box(graph):
    count, edges = graph

    layout = compute_layout(count, edges)

    for route in layout.routes:
        for (x, y), (next_x, next_y) in list(zip(route.points, route.points[1:], strict=False))[1::2]:
            assert y == next_y  # an edge is straight past a column
            for left, top in layout.places:
                assert not (left < next_x and x < left + WIDTH and top < y < top + HEIGHT)


@given(any_graph)
@settings(deadline=None)
def test_the_layout_does_not_depend_on_the_order_of_edges(graph):
    count, edges = graph

    assert compute_layout(count, edges) == compute_layout(count, reversed(edges))


@given(valid_graph)
@settings(deadline=None)
def test_a_valid_graph_keeps_all_edges_and_its_columns_follow_the_longest_path(graph):
    count, edges = graph

    columns, forward = assign_columns(count, edges)

    assert forward == sorted(set(edges))
    for node in range(count):
        assert columns[node] == max((columns[source] + 1 for source, target in edges if target == node), default=0)


@given(valid_graph)
@settings(deadline=None)
def test_transitive_reduction_keeps_reachability(graph):
    count, edges = graph
    columns, forward = assign_columns(count, edges)

    kept = transitive_reduction(columns, forward)

    assert set(kept) <= set(forward)
    assert reachable(count, kept) == reachable(count, forward)


def reachable(count, edges):
    found = {(node, node) for node in range(count)}
    for _ in range(count):
        found |= {(start, target) for start, here in found for source, target in edges if source == here}
    return found


def test_the_layout_of_500_nodes_takes_less_than_a_second():
    rng = random.Random(1)
    near = [(max(0, t - rng.randint(1, 30)), t) for t in range(1, 500) for _ in range(rng.randint(1, 3))]
    far = [(rng.randrange(t), t) for t in range(1, 500) for _ in range(rng.randint(1, 5))]
    every = [(source, target) for target in range(500) for source in range(target)]
    for edges in (near, far, every):
        assert any(cpu_seconds(lambda edges=edges: compute_layout(500, edges)) < 1 for _ in range(3))


def cpu_seconds(call):
    """Return the CPU time of a call: its wall time depends on other processes."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def test_a_layout_with_too_many_edges_leaves_out_the_redundant_ones():
    every = [(source, target) for target in range(30) for source in range(target)]
    assert len(every) > MAX_EDGES

    layout = compute_layout(30, every)

    assert len(layout.routes) == 29
    assert layout.left_out == len(every) - 29


def test_many_similar_nodes_fold_into_one_box():
    fan = [node(index, 0, name="mail") for index in range(1, FOLD_ABOVE + 2)]
    others = [node(0), node(90, *range(1, FOLD_ABOVE + 2)), node(91, 0, name="other")]

    boxes = fold_nodes([*others[:1], *fan, *others[1:]])

    assert [len(box.nodes) for box in boxes] == [1, FOLD_ABOVE + 1, 1, 1]
    assert boxes[1].counts == {"COMPLETED": FOLD_ABOVE + 1}
    assert boxes[1].label == "21 × mail"
    assert edges_between(boxes) == [(0, 1), (0, 3), (1, 2)]
    assert len(fold_nodes(fan[1:])) == FOLD_ABOVE


def test_a_folded_box_has_the_worst_state_of_its_nodes():
    states = ["COMPLETED"] * 30 + ["RUNNING"]
    (box,) = fold_nodes([node(index, status=status, began=index, ended=40) for index, status in enumerate(states)])
    assert box.status == "RUNNING"
    assert (box.began, box.ended) == (START, START + timedelta(seconds=40))


def test_the_counts_of_a_failed_map_do_not_look_like_a_multiplication():
    (box,) = fold_nodes([node(0, status="FAILED", kind="map", items={"COMPLETED": 3, "FAILED": 2})])

    svg = str(draw([box], compute_layout(1, []), DrawingStyle(address=lambda _: "#", now=None)))

    assert ">2 Failed  ● 3<" in svg
    assert "✕ 2" not in svg


def test_the_critical_path_follows_the_nodes_that_ended_last():
    nodes = [
        node(0, began=0, ended=1),
        node(1, 0, began=1, ended=9),
        node(2, 0, began=1, ended=3),
        node(3, 1, 2, began=9, ended=10),
    ]
    assert [each.position for each in critical_path(nodes)] == [0, 1, 3]


def test_the_critical_path_omits_a_node_that_its_dependent_did_not_wait_for():
    nodes = [node(0, began=0, ended=2), node(1, began=0, ended=9), node(2, 0, 1, began=2, ended=10)]
    assert [each.position for each in critical_path(nodes)] == [0, 2]


def test_a_running_workflows_critical_path_ends_at_its_longest_running_node():
    nodes = [
        node(0, began=0, ended=2),
        node(1, 0, began=2, status="RUNNING"),
        node(2, 0, began=3, status="RUNNING"),
        node(3, 1, 2, status="PENDING"),
    ]
    assert [each.position for each in critical_path(nodes)] == [0, 1]


def test_a_step_of_the_path_waits_from_the_end_of_the_one_before_and_may_run_more_than_once():
    runs = ((START + timedelta(seconds=5), START + timedelta(seconds=6)), (START + timedelta(seconds=8),) * 2)
    nodes = [node(0, began=1, ended=2), node(1, 0, began=3, ended=9, runs=runs)]

    steps = path_steps(critical_path(nodes), START, START + timedelta(seconds=10), None)

    seconds = [(step.waited.total_seconds(), step.ran.total_seconds(), step.percent) for step in steps]
    assert seconds == [(1, 1, 20), (6, 1, 70), (1, 0, 10)], "the last is the time after the last node"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=20))
@settings(deadline=None)
def test_the_shares_of_the_path_add_up_to_all_of_it(times):
    nodes = [
        node(index, *([index - 1] if index else []), began=ready, ended=ended, runs=(
            (START + timedelta(seconds=begun), START + timedelta(seconds=ended)),
        ))
        for index, (ready, begun, ended) in enumerate(times)
    ]  # fmt: skip
    end = START + timedelta(seconds=60)

    steps = path_steps(nodes, START, end, None)

    assert sum(step.percent for step in steps) == 100
    assert sum((step.waited + step.ran for step in steps), timedelta()) <= timedelta(seconds=60)
    assert all(step.waited >= timedelta() and step.ran >= timedelta() for step in steps)


@given(
    st.lists(
        st.builds(
            lambda index, waits, began, ended, status: node(index, *waits, began=began, ended=ended, status=status),
            st.integers(0, 8),
            st.lists(st.integers(-3, 12), max_size=4),
            st.none() | st.integers(0, 50),
            st.none() | st.integers(0, 50),
            st.sampled_from(["COMPLETED", "FAILED", "SKIPPED", "RUNNING", "PENDING", "gone"]),
        ),
        max_size=9,
    )
)
@settings(deadline=None)
def test_any_rows_can_be_drawn(nodes):
    boxes = fold_nodes(nodes)
    path = critical_path(nodes)
    assert len(path) == len({each.position for each in path})

    style = DrawingStyle(lambda box: "#x", START + timedelta(seconds=60), range(len(boxes)), "title")
    svg = str(draw(boxes, compute_layout(len(boxes), edges_between(boxes)), style))

    assert svg.count("<a ") == len(boxes)
    assert str(draw_timeline(boxes, style)).count("<a ") <= len(boxes)


def test_a_drawing_escapes_its_text_and_has_no_inline_styles_or_handlers():
    bad = GraphNode(key=1, position=0, node_id='<script>"x"</script>', status="COMPLETED", error_code="<b>", name="<i>")
    boxes = fold_nodes([bad])

    svg = str(draw(boxes, compute_layout(1, []), DrawingStyle(lambda box: '"><script>', None, (), "<title>")))

    for text in ("<script", "<b>", "<i>", "style=", " on"):
        assert text not in svg.replace(" on a", "")
    assert "&lt;script&gt;" in svg


def test_edges_curve_between_columns_and_are_straight_past_them():
    assert edge_path([(0, 0), (10, 8), (20, 8), (30, 8)]) == "M0 0C5 0 5 8 10 8L20 8L30 8"


def test_names_are_truncated_by_display_width():
    assert truncate("abc", 3) == "abc"
    assert truncate("abcd", 3) == "ab…"
    assert truncate("日本語", 4) == "日…"
