"""Counting what is different, exactly, in memory that does not depend on what it is."""

from hypothesis import given
from hypothesis import strategies as st

from workers.report.distinct_counter import DistinctCounter


@given(st.lists(st.text(max_size=3)))
def test_it_counts_like_a_set(things):
    distinct = DistinctCounter()
    new = [distinct.add(thing) for thing in things]
    assert distinct.count == len(set(things)) == sum(new)


def test_it_counts_many_exactly():
    distinct = DistinctCounter()
    for _ in range(2):
        for number in range(50_000):
            distinct.add(f"/job/{number}")
    assert distinct.count == 50_000


def test_it_stops_at_its_limit_and_says_so():
    distinct = DistinctCounter(limit=100)
    for number in range(300):
        distinct.add(str(number))
    assert (distinct.count, distinct.is_full) == (100, True)
