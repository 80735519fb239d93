"""``dependents_of`` and ``cycles_in``, checked on random graphs."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django.workflows.topology import cycles_in, dependents_of

SIZE = 12

#: The machine may be slow, so no example has a time limit.
NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def graphs(draw):
    """Draw any graph, as the dependencies of each node."""
    size = draw(st.integers(0, SIZE))
    sources = st.lists(st.integers(0, size - 1), max_size=4, unique=True) if size else st.nothing()
    return [tuple(draw(sources)) for _ in range(size)]


def is_acyclic(waits_for, without=frozenset()):
    """Remove nodes without remaining dependencies, as long as there are any."""
    remaining = set(range(len(waits_for))) - without
    while ready := {index for index in remaining if not remaining & set(waits_for[index])}:
        remaining -= ready
    return not remaining


@pytest.mark.slow
@given(graphs())
@NO_DEADLINE
def test_dependents_of_inverts_the_dependencies(waits_for):
    dependents = dependents_of(waits_for)

    pairs = {(source, index) for index, sources in enumerate(waits_for) for source in sources}
    assert pairs == {(source, index) for source, found in enumerate(dependents) for index in found}
    assert all(found == sorted(set(found)) for found in dependents)


@pytest.mark.slow
@given(graphs())
@NO_DEADLINE
def test_without_the_nodes_of_its_cycles_a_graph_is_acyclic(waits_for):
    cycles = list(cycles_in(waits_for))

    for cycle in cycles:
        assert all(before in waits_for[after] for before, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    nodes = [index for cycle in cycles for index in cycle]
    assert len(nodes) == len(set(nodes))
    assert is_acyclic(waits_for, frozenset(nodes))
    assert bool(cycles) == (not is_acyclic(waits_for))


@pytest.mark.slow
def test_cycles_in_finds_a_cycle_of_a_hundred_thousand_nodes():
    size = 100_000
    waits_for = [((index - 1) % size,) for index in range(size)]

    (cycle,) = cycles_in(waits_for)

    assert len(cycle) == size
