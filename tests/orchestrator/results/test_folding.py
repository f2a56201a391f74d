"""Folds against a slow oracle of exact fractions."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.results.adapters import MetricValue, Results
from orchestrator.results.folding import Fold, fold_results

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
metrics = st.builds(MetricValue, finite, st.none() | finite, st.none() | finite)
iterations = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from(["latency", "size"]), metrics, max_size=2)
    ),
    min_size=1,
    max_size=7,
)


def oracle(folded: list[MetricValue], fold: Fold) -> MetricValue:
    """The rule, one metric at a time and in exact numbers."""
    ordered = list(folded)
    for _ in ordered:  # bubble sort: value, then upper, then lower; no end comes first
        for place in range(len(ordered) - 1):
            if precedes(ordered[place + 1], ordered[place]):
                ordered[place], ordered[place + 1] = ordered[place + 1], ordered[place]
    if fold == Fold.MIN:
        return ordered[0]
    if fold == Fold.MAX:
        return ordered[-1]
    if fold == Fold.MEDIAN:
        if len(ordered) % 2:
            return ordered[len(ordered) // 2]
        ordered = ordered[len(ordered) // 2 - 1 : len(ordered) // 2 + 1]
    return MetricValue(
        mean([m.value for m in ordered]),
        mean_end([(m.lower, m.value) for m in ordered]),
        mean_end([(m.upper, m.value) for m in ordered]),
    )


def precedes(one: MetricValue, other: MetricValue) -> bool:
    for mine, theirs in ((one.value, other.value), (one.upper, other.upper), (one.lower, other.lower)):
        if mine != theirs:
            return theirs is not None and (mine is None or mine < theirs)
    return False


def mean(numbers: list[float]) -> float:
    return float(sum(map(Fraction, numbers)) / len(numbers))


def mean_end(ends: list[tuple[float | None, float]]) -> float | None:
    if all(end is None for end, _ in ends):
        return None
    return mean([value if end is None else end for end, value in ends])


def same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-300)


@pytest.mark.parametrize("fold", Fold)
@given(iterations=iterations)
def test_a_fold_is_that_of_the_oracle_for_each_metric(fold: Fold, iterations: list[Results]):
    found = fold_results(iterations, fold)
    names = {(benchmark, measure) for results in iterations for benchmark in results for measure in results[benchmark]}
    assert {(benchmark, measure) for benchmark in found for measure in found[benchmark]} == names
    for benchmark, measure in names:
        folded = [results[benchmark][measure] for results in iterations if measure in results.get(benchmark, {})]
        wanted, got = oracle(folded, fold), found[benchmark][measure]
        assert same(got.value, wanted.value), (got, wanted)
        assert same(got.lower, wanted.lower), (got, wanted)
        assert same(got.upper, wanted.upper), (got, wanted)


def test_a_metric_is_averaged_over_the_iterations_that_have_it():
    found = fold_results([{"a": {"latency": MetricValue(2.0)}}, {}, {"a": {"latency": MetricValue(4.0)}}], Fold.MEAN)
    assert found == {"a": {"latency": MetricValue(3.0)}}


def test_an_end_that_one_iteration_lacks_is_its_value():
    found = fold_results(
        [{"a": {"latency": MetricValue(2.0, 1.0, None)}}, {"a": {"latency": MetricValue(4.0)}}], Fold.MEAN
    )
    assert found == {"a": {"latency": MetricValue(3.0, 2.5, None)}}


def test_a_sum_above_the_largest_double_has_a_mean():
    """The sum of two values may overflow although their mean does not."""
    large = MetricValue(1.7e308)
    found = fold_results([{"a": {"latency": large}}, {"a": {"latency": large}}], Fold.MEAN)
    assert found["a"]["latency"].value == pytest.approx(1.7e308)
