"""Contract 5: which texts of an output are read, in which order, and within which limits."""

import json
import time
import tracemalloc

import pytest

from orchestrator.results import reading
from orchestrator.results.adapters import Average, MetricValue, base, parse_results
from orchestrator.results.folding import Fold
from orchestrator.results.reading import ReadingSettings, UnreadableResult, read_body, read_texts

JSON = ReadingSettings("json")
MAGIC = ReadingSettings("magic")


def metric(name: str, value: float = 1.0) -> str:
    """A result with one metric in Bencher Metric Format."""
    return json.dumps({name: {"latency": {"value": value}}})


def body(*iterations: object, **members: object) -> bytes:
    return json.dumps({"results": list(iterations)} | members).encode()


def names(raw: bytes, settings: ReadingSettings = JSON) -> list[list[str]]:
    """The benchmarks of each iteration that was read."""
    return [list(results) for results in read_body(raw, settings)]


def test_iterations_are_read_in_order():
    assert names(body({"stdout": metric("a")}, {"stdout": metric("b")})) == [["a"], ["b"]]


def test_files_come_before_stdout():
    assert names(body({"stdout": metric("printed"), "output": {"/x.json": metric("written")}})) == [["written"]]


def test_an_empty_map_of_files_hides_stdout():
    assert names(body({"stdout": metric("printed"), "output": {}})) == []


def test_no_map_of_files_is_read_as_an_absent_one():
    assert names(body({"stdout": metric("printed"), "output": None})) == [["printed"]]


def test_each_file_is_an_iteration_in_the_order_of_the_paths():
    files = {"b": metric("b"), "a/b": metric("a/b"), "a.b": metric("a.b"), "a": metric("a")}
    assert names(body({"output": files})) == [["a"], ["a/b"], ["a.b"], ["b"]]


def test_the_runners_own_measurements_are_a_file_among_the_others():
    """As Bencher orders paths: the root precedes all names, and NUL all other characters of a name."""
    own = json.dumps({"image": {"build-time": {"value": 3}}})
    files = {"/out.json": metric("absolute"), "\0bencher": own, "out.json": metric("relative")}
    assert names(body({"output": files})) == [["absolute"], ["image"], ["relative"]]


def test_stderr_and_exit_code_are_ignored():
    assert names(body({"exit_code": 7, "stderr": "no JSON", "stdout": metric("a")}, {"exit_code": 1})) == [["a"]]


def test_no_results_are_no_metrics():
    assert names(body()) == []
    assert names(body({"exit_code": 0})) == []


def test_an_error_of_the_job_is_no_result():
    assert names(body({"stdout": metric("a")}, error="exit code 7")) == [["a"]]


def test_an_empty_object_is_an_iteration_without_metrics():
    assert read_body(body({"stdout": "{}"}), JSON) == [{}]


def test_one_unreadable_text_makes_the_whole_result_unreadable():
    with pytest.raises(UnreadableResult, match="Result 2 of 2 is not in a format of the adapter json"):
        read_body(body({"stdout": metric("a")}, {"stdout": "no JSON: hunter2"}), JSON)


def test_the_reason_contains_nothing_of_the_output():
    with pytest.raises(UnreadableResult) as refused:
        read_body(body({"stdout": "hunter2", "output": {"hunter2": "hunter2"}}), JSON)
    assert "hunter2" not in str(refused.value)


def test_a_fold_makes_one_iteration_of_all():
    raw = body(*({"stdout": metric("a", value)} for value in (5, 1, 3)))
    settings = ReadingSettings("json", fold=Fold.MEDIAN)
    assert read_body(raw, settings) == [{"a": {"latency": MetricValue(3.0)}}]


def test_a_fold_of_nothing_is_nothing():
    assert read_body(body(), ReadingSettings("json", fold=Fold.MEAN)) == []


def test_an_average_that_the_adapter_has_not_is_unreadable():
    line = "test a ... bench:  10 ns/iter (+/- 1)\n"
    assert read_texts([line], ReadingSettings("rust_bench", Average.MEDIAN))
    with pytest.raises(UnreadableResult, match="adapter rust_bench with the average mean"):
        read_texts([line], ReadingSettings("rust_bench", Average.MEAN))


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b"{}", b'{"results": {}}', b'{"results": [1]}', b'{"results": [{"stdout": 1}]}',
        b'{"results": [{"output": []}]}', b'{"results": [{"output": {"a": 1}}]}', b'{"results": [{"output": {"a": null}}]}',
        b'{"results": NaN}', b"\xff", b'{"results": [' + b"[" * 2000 + b"]" * 2000 + b"]}",
    ],
)  # fmt: skip
def test_stored_bytes_of_another_form_are_unreadable(raw):
    with pytest.raises(UnreadableResult):
        read_body(raw, MAGIC)


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", '"1"', "true", "null", "[1]", "1" * 400]
)
@pytest.mark.parametrize("member", ["value", "lower_value", "upper_value"])
def test_a_value_that_is_no_finite_number_is_unreadable(member, value):
    if member != "value" and value == "null":
        return  # an absent end
    members = {"value": "1", "lower_value": "1", "upper_value": "1"} | {member: value}
    text = f'{{"a": {{"latency": {{{", ".join(f"{chr(34)}{n}{chr(34)}: {v}" for n, v in members.items())}}}}}}}'
    with pytest.raises(UnreadableResult):
        read_texts([text], JSON)


def test_a_text_nested_as_deep_as_the_parser_allows_and_deeper():
    for depth in (500, 1000, 100_000):
        with pytest.raises(UnreadableResult):
            read_texts(['{"a":' * depth + "1" + "}" * depth], MAGIC)


def test_255_files_and_the_runners_own_are_read_and_one_more_is_refused():
    files = {f"/{number:03}": metric(f"b{number}") for number in range(255)} | {"\0bencher": "{}"}
    assert len(read_body(body({"output": files}), JSON)) == 256
    with pytest.raises(UnreadableResult, match="more than 256 files"):
        read_body(body({"output": files | {"/one more": "{}"}}), JSON)


def test_as_many_metrics_as_allowed_are_read_and_one_more_is_refused():
    texts = [json.dumps({f"b{number}": {"latency": {"value": 1}} for number in range(reading.MAX_METRICS // 2)})] * 2
    assert sum(len(results) for results in read_texts(texts, JSON)) == reading.MAX_METRICS
    with pytest.raises(UnreadableResult, match=f"more than {reading.MAX_METRICS} metrics"):
        read_texts([*texts, metric("one more")], JSON)


def test_metrics_are_counted_and_not_benchmarks():
    measures = {f"m{number}": {"value": 1} for number in range(reading.MAX_METRICS + 1)}
    with pytest.raises(UnreadableResult, match="metrics"):
        read_texts([json.dumps({"a": measures})], JSON)


def test_a_benchmark_without_metrics_counts_as_a_metric():
    half = json.dumps({f"b{number}": {} for number in range(reading.MAX_METRICS // 2)})
    assert len(read_texts([half, half], JSON)) == 2
    with pytest.raises(UnreadableResult, match=f"more than {reading.MAX_METRICS} metrics"):
        read_texts([half, half, '{"one more": {}}'], JSON)


LINES = {
    "go_bench": "BenchmarkA{} 1 1 ns/op\n",
    "rust_bench": "test a{} ... bench: 1 ns/iter (+/- 1)\n",
    "rust_criterion": "a{} time: [1 ns 1 ns 1 ns]\n",
}


@pytest.mark.parametrize("adapter", LINES)
def test_an_adapter_of_lines_stops_above_the_limit(adapter, monkeypatch):
    """Else a text of 64 MiB would take a gigabyte of memory before it is refused."""
    monkeypatch.setattr(base, "MAX_BENCHMARKS", 10)
    text = "".join(LINES[adapter].format(number) for number in range(100))
    assert len(parse_results(adapter, text) or ()) == 11
    repeated = LINES[adapter].format("") * 100
    assert len(parse_results(adapter, repeated) or ()) == 1


def test_as_many_texts_as_allowed():
    with pytest.raises(UnreadableResult, match=f"more than {reading.MAX_TEXTS} files and outputs"):
        read_body(body(*[{"stdout": "{}"}] * (reading.MAX_TEXTS + 1)), JSON)


HUGE = 25 << 20
HOSTILE = {
    "a million metrics": lambda: json.dumps({f"b{number}": {"latency": {"value": 1}} for number in range(1_000_000)}),
    "empty lists": lambda: '{"benchmarks": [' + "[]," * (HUGE // 3) + "[]]}",
    "blanks": lambda: " " * HUGE,
    "line feeds": lambda: "\n" * HUGE,
    "blanks before time": lambda: (" " * 1000 + "time:") * (HUGE // 1005),
    "tests": lambda: "test " * (HUGE // 5),
    "one long name": lambda: "test " + "a" * HUGE + " ... bench: 1 ns/iter (+/- 1)",
    "digits": lambda: "test a ... bench: " + "9" * HUGE + " ns/iter (+/- 1)",
    "Benchmark": lambda: "Benchmark" * (HUGE // 9),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_results_are_refused_in_bounded_time_and_memory(hostile):
    """Bounds with room: 100 times what it takes, and below what a quadratic pattern or a tree of all values would take."""
    text = HOSTILE[hostile]()
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(UnreadableResult):
            read_texts([text], MAGIC)
        seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seconds < 60
    assert peak < 400 << 20
