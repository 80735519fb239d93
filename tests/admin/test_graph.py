"""The layout and the drawing of workflow graphs."""

import random
import re
import time
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django.admin.graph.boxes import FOLD_ABOVE, GraphNode, edges_between, fold_nodes
from horsies_django.admin.graph.drawing import draw
from horsies_django.admin.graph.layout import HEIGHT, WIDTH, compute_layout

pytestmark = pytest.mark.once

START = datetime(2026, 1, 1, tzinfo=UTC)

#: The number of nodes, and edges without a cycle.
graphs = st.integers(2, 30).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(
            st.tuples(st.integers(0, count - 2), st.integers(1, count - 1)).filter(lambda e: e[0] < e[1]), max_size=90
        ),
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


@pytest.mark.slow
@given(graphs)
@settings(max_examples=80, deadline=None)
def test_no_two_boxes_overlap_and_each_edge_points_forward(graph):
    count, edges = graph

    layout = compute_layout(count, edges)

    assert len(layout.places) == count
    for (x, y), (other_x, other_y) in combinations(layout.places, 2):
        assert abs(x - other_x) >= WIDTH or abs(y - other_y) >= HEIGHT
    for x, y in layout.places:
        assert 0 <= x <= layout.width - WIDTH
        assert 0 <= y <= layout.height - HEIGHT
    for (source, target), points in layout.routes.items():
        xs = [x for x, _ in points]
        assert xs == sorted(xs)
        assert xs[0] == layout.places[source][0] + WIDTH
        assert xs[-1] == layout.places[target][0]
        assert xs[0] < xs[-1]


@pytest.mark.slow
@given(graphs)
@settings(max_examples=40, deadline=None)
def test_no_edge_runs_behind_a_box(graph):
    count, edges = graph

    layout = compute_layout(count, edges)

    for points in layout.routes.values():
        for (x, y), (next_x, next_y) in list(pairwise(points))[1::2]:
            assert y == next_y  # an edge is straight past a column
            for left, top in layout.places:
                assert not (left < next_x and x < left + WIDTH and top < y < top + HEIGHT)


@pytest.mark.slow
@given(graphs)
@settings(deadline=None)
def test_the_layout_does_not_depend_on_the_order_of_edges(graph):
    count, edges = graph

    assert compute_layout(count, edges) == compute_layout(count, reversed(edges))


@pytest.mark.slow
@given(graphs)
@settings(deadline=None)
def test_only_edges_that_a_longer_path_implies_are_left_out(graph):
    count, edges = graph

    drawn = compute_layout(count, edges).routes.keys()

    assert drawn <= set(edges)
    assert reachable(count, drawn) == reachable(count, edges)
    assert all((source, target) not in reachable(count, drawn - {(source, target)}) for source, target in drawn)


def reachable(count, edges):
    pairs = {(node, node) for node in range(count)}
    for target in range(count):
        for source in range(target):
            if (source, target) in edges:
                pairs |= {(start, target) for start, here in pairs if here == source}
    return pairs


def test_edges_with_a_cycle_are_not_drawn():
    layout = compute_layout(3, [(0, 1), (1, 2), (2, 1)])

    assert len(set(layout.places)) == 3
    assert not layout.routes


@pytest.mark.parametrize(
    "edges",
    [
        pytest.param([(0, 1), (1, 2), (2, 3), (3, 4)], id="chain"),
        pytest.param([(0, place) for place in range(1, 8)], id="fan out"),
        pytest.param([(place, 7) for place in range(7)], id="fan in"),
        pytest.param([(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)], id="diamond"),
        pytest.param([(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (4, 6), (5, 7), (6, 7)], id="two diamonds"),
        pytest.param([(0, 1), (0, 2), (1, 4), (2, 3), (1, 6), (2, 5)], id="fan of fans"),
        pytest.param([(0, 1), (1, 2), (2, 5), (0, 3), (3, 5), (0, 4), (4, 5)], id="long and short ways"),
    ],
)
def test_chains_fans_and_diamonds_are_drawn_without_a_crossing(edges):
    count = max(target for _, target in edges) + 1

    layout = compute_layout(count, edges)

    assert set(layout.routes) == set(edges)
    lines = {pair for points in layout.routes.values() for pair in pairwise(points)}
    for ((x, y), (to_x, to_y)), ((other_x, other_y), (other_to_x, other_to_y)) in combinations(lines, 2):
        if (x, to_x) == (other_x, other_to_x):
            assert (y - other_y) * (to_y - other_to_y) >= 0


def test_a_chain_is_a_straight_line():
    assert len({y for _, y in compute_layout(5, [(0, 1), (1, 2), (2, 3), (3, 4)]).places}) == 1


@pytest.mark.slow
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


def drawn(*nodes, address="#x"):
    boxes = fold_nodes(nodes)
    return str(draw(boxes, compute_layout(len(boxes), edges_between(boxes)), "title", lambda box: address, []))


def test_the_counts_of_a_failed_map_do_not_look_like_a_multiplication():
    svg = drawn(node(0, status="FAILED", kind="map", items={"COMPLETED": 3, "FAILED": 2}))

    assert ">2 Failed  ● 3<" in svg
    assert "✕ 2" not in svg


def test_a_drawing_escapes_its_text_and_has_no_inline_styles_or_handlers():
    bad = GraphNode(key=1, position=0, node_id='<script>"x"</script>', status="COMPLETED", error_code="<b>", name="<i>")

    svg = drawn(bad, address='"><script>')

    for text in ("<script", "<b>", "<i>", "style=", " on"):
        assert text not in svg.replace(" on a", "")
    assert "&lt;script&gt;" in svg


def test_edges_curve_between_columns_and_are_straight_past_them():
    svg = drawn(node(0), node(1, 0), node(2, 1), node(3), node(4, 2, 3))

    ways = [re.sub(r"[-\d ]+", "", way) for way in re.findall(r'<path class="horsies-edge"[^>]* d="([^"]+)"', svg)]
    assert sorted(ways) == ["MC", "ML", "ML", "MLLLLC"]


def test_names_are_truncated_by_display_width():
    svg = drawn(node(0)._replace(node_id="n" * 30), node(1)._replace(node_id="日" * 30))

    assert f">{'n' * 20}…<" in svg
    assert f">{'日' * 9}…<" in svg
