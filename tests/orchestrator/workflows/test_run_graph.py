"""The drawing of a run: each job is to the right of all that it needs, and no two overlap."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workflows.run_graph import HEIGHT, WIDTH, GraphJob, draw_graph


def test_without_jobs_there_is_an_empty_drawing():
    graph = draw_graph([])
    assert (graph.nodes, graph.lines) == ((), ())


@given(st.lists(st.sets(st.integers(0, 30)), max_size=25))
def test_needs_are_to_the_left_and_nodes_do_not_overlap(wanted):
    needs = {f"j{index}": [f"j{one}" for one in sorted(before) if one < index] for index, before in enumerate(wanted)}
    graph = draw_graph([GraphJob(key, key, tuple(before), "queued", "info") for key, before in needs.items()])
    nodes = {node.key: node for node in graph.nodes}
    assert list(nodes) == list(needs)
    for key, before in needs.items():
        assert all(nodes[one].x + WIDTH < nodes[key].x for one in before)
    for one, other in itertools.combinations(graph.nodes, 2):
        assert one.x != other.x or abs(one.y - other.y) >= HEIGHT
    assert all(node.x + WIDTH <= graph.width and node.y + HEIGHT <= graph.height for node in graph.nodes)
    assert len(graph.lines) == sum(map(len, needs.values()))
