"""The chart of processes: the tree from top to bottom, whatever the payload claims."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.ingest.timeline import MIN_WIDTH, WIDTH, timeline


def process(pid, parent=None, *, first="00", last=None, **changes):
    return {
        "pid": pid, "parent_pid": parent, "is_root": parent is None, "exec_count": 1, "exec_paths": [f"/bin/{pid}"], "command": "",
        "first_seen": f"2026-03-17T20:00:{first}.000Z", "ended_at": last and f"2026-03-17T20:00:{last}.000Z", "exit_code": 0, "signal": None,
    } | changes  # fmt: skip


def test_children_are_below_their_parents():
    rows = timeline([process(1), process(2, 1), process(3, 1), process(4, 2), process(5, 4)]).rows
    assert [(row.item["pid"], row.depth) for row in rows] == [(1, 0), (2, 1), (4, 2), (5, 3), (3, 1)]


def test_bars_are_where_their_time_was():
    chart = timeline(
        [process(1, first="00", last="10"), process(2, 1, first="05", last="10"), process(3, 1, first="02", last="02")]
    )
    assert [(row.x, row.width) for row in chart.rows] == [(0, WIDTH), (500, 500), (200, MIN_WIDTH)]
    assert chart.seconds == 10
    assert chart.ticks == [0, 2.5, 5, 7.5, 10]


def test_a_process_whose_end_was_not_seen_lasts_to_the_end():
    root, child = timeline([process(1, last="10"), process(2, 1, first="06", exit_code=None)]).rows
    assert (child.x, child.width, child.seconds, child.ended) == (600, 400, None, "end not traced")
    assert (root.ended, root.outcome) == ("exit 0", "fine")


def test_a_number_used_twice_belongs_to_the_newest():
    rows = timeline([process(1), process(2, 1), process(2, 1, first="03"), process(9, 2, first="04")]).rows
    assert [(row.item["pid"], row.depth) for row in rows] == [(1, 0), (2, 1), (2, 1), (9, 2)]


def test_a_missing_parent_is_the_root():
    assert [row.depth for row in timeline([process(1), process(5, 77)]).rows] == [0, 1]


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.none() | st.integers(1, 6), st.integers(0, 59), st.none() | st.integers(0, 59)),
        max_size=12,
    )
)
def test_every_process_is_drawn_once_inside_the_chart(made):
    items = [
        process(pid, parent, first=f"{first:02}", last=None if last is None else f"{last:02}")
        for pid, parent, first, last in made
    ]
    rows = timeline(items).rows
    assert sorted(id(row.item) for row in rows) == sorted(map(id, items))
    assert all(0 <= row.x <= row.x + row.width <= WIDTH for row in rows)
