"""The adapters: recorded and documented output of each harness becomes metrics, and nothing else does.

`recorded/ABOUT.md` names the origin of each file.
"""

import json
from pathlib import Path

import pytest

from orchestrator.results.adapters import ADAPTERS, AdapterName, Average, MetricValue, parse_results

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def latencies(adapter: str, text: str, average: Average | None = None) -> dict[str, MetricValue]:
    found = parse_results(adapter, text, average)
    assert found is not None
    assert all(list(measures) == ["latency"] for measures in found.values())
    return {name: measures["latency"] for name, measures in found.items()}


def parts(metric: MetricValue) -> tuple[float, float | None, float | None]:
    return metric.value, metric.lower, metric.upper


@pytest.mark.parametrize("name", AdapterName)
def test_each_published_name_has_an_adapter(name):
    assert ADAPTERS[name]


def test_no_other_name_has_one():
    assert set(ADAPTERS) == set(AdapterName)


# --- Bencher Metric Format --------------------------------------------------------------------------------------------


def test_bencher_metric_format_has_values_and_ends():
    text = json.dumps(
        {"fib 10": {"latency": {"value": 1, "lower_value": 0.5, "upper_value": None}, "size": {"value": 2e3}}, "b": {}}
    )
    assert parse_results("json", text) == {
        "fib 10": {"latency": MetricValue(1.0, 0.5, None), "size": MetricValue(2000.0)},
        "b": {},
    }


def test_unknown_members_of_a_metric_are_ignored():
    assert parse_results("json", '{"a": {"m": {"value": 1, "units": "ns"}}}') == {"a": {"m": MetricValue(1.0)}}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", '"a"', "null", '{"a": 1}', '{"a": {"m": 1}}', '{"a": {"m": {}}}', '{"": {}}', '{"a\\u0000": {}}',
     '{"a": {"": {"value": 1}}}', '{"a": {" m": {"value": 1}}}', '{"a": {"m\\u0000": {"value": 1}}}',
     json.dumps({"a" * 1025: {}}), json.dumps({"a": {"m" * 65: {"value": 1}}}), '{"a": {}} trailing'],
)  # fmt: skip
def test_other_json_is_no_bencher_metric_format(text):
    assert parse_results("json", text) is None


def test_the_longest_names():
    name, measure = "ä" * 512, "m" * 64
    assert parse_results("json", json.dumps({name: {measure: {"value": 1}}})) == {name: {measure: MetricValue(1.0)}}


# --- Rust -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ["rust_bench", "rust", "magic"])
def test_rust_bench_is_the_median_and_the_deviation(adapter):
    text = (
        "\nrunning 4 tests\ntest tests::ignored ... ignored\n"
        "test tests::small ... bench:           0 ns/iter (+/- 0)\n"
        "test tests::large ... bench:   3,161,635 ns/iter (+/- 975,002)\r\n"
        "test tests::decimal     ... bench:  298,794.10 ns/iter (+/- 2,639.98)\n"
        "test tests::bytes ... bench:       1.50 us/iter (+/- 0.25) = 830 MB/s\n"
        "test tests::wrong ... FAILED\n\ntest result: ok. 0 passed; 0 failed; 1 ignored; 4 measured\n"
    )
    assert latencies(adapter, text) == {
        "tests::small": MetricValue(0.0, 0.0, 0.0),
        "tests::large": MetricValue(3161635.0, 3161635.0 - 975002, 3161635.0 + 975002),
        "tests::decimal": MetricValue(298794.10, 298794.10 - 2639.98, 298794.10 + 2639.98),
        "tests::bytes": MetricValue(1500.0, 1250.0, 1750.0),
    }


@pytest.mark.parametrize("adapter", ["rust_criterion", "rust", "magic"])
def test_criterion_is_the_estimate_and_its_interval(adapter):
    text = (
        "Benchmarking file\nBenchmarking file: Analyzing\n"
        "file                    time:   [320.62 ps 323.90 ps 327.55 ps]\n"
        "                        change: [-2.0565% -0.2521% +1.6377%] (p = 0.79 > 0.05)\n"
        "Found 8 outliers among 100 measurements (8.00%)\n"
        "a very long name of a benchmark/with parameters\n"
        "                        time:   [1.0000 ms 1.5000 ms 2.0000 ms]\n"
        "                        thrpt:  [1.0 Kelem/s 1.0 Kelem/s 1.0 Kelem/s]\n"
        "micro/two words         time:   [1.0000 µs 1.5000 µs 2.0000 µs]\n"
        "seconds                 time:   [1.0000 s 1.5000 s 2.0000 s]\n"
    )
    found = latencies(adapter, text)
    assert list(found) == [
        "file", "a very long name of a benchmark/with parameters", "micro/two words", "seconds",
    ]  # fmt: skip
    assert parts(found["file"]) == pytest.approx((0.32390, 0.32062, 0.32755))
    assert parts(found["micro/two words"]) == pytest.approx((1500, 1000, 2000))
    assert parts(found["seconds"]) == pytest.approx((1.5e9, 1e9, 2e9))
    long_name = found["a very long name of a benchmark/with parameters"]
    assert parts(long_name) == pytest.approx((1.5e6, 1e6, 2e6))


# --- Go ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ["go_bench", "go", "magic"])
def test_go_bench_is_the_time_of_an_operation(adapter):
    text = (
        "goos: linux\ngoarch: amd64\npkg: example.com/fib\n"
        "BenchmarkFib10-8   \t 5000000\t       325 ns/op\n"
        "BenchmarkFib20\t   30000\t     40537.123 ns/op\t     16 B/op\t       1 allocs/op\n"
        "BenchmarkFib/sub/case_-_20-8 \t 1\t 2 ms/op\r\n"
        "BenchmarkOnlyBytes-8 \t 1\t 2 B/op\n"
        "PASS\nok  \texample.com/fib\t3.614s\n"
    )
    assert latencies(adapter, text) == {
        "BenchmarkFib10-8": MetricValue(325.0),
        "BenchmarkFib20": MetricValue(40537.123),
        "BenchmarkFib/sub/case_-_20-8": MetricValue(2e6),
    }


# --- JSON of other harnesses ------------------------------------------------------------------------------------------

PYTEST = {
    "machine_info": {"node": "host"},
    "commit_info": {"id": None},
    "benchmarks": [
        {
            "group": None,
            "name": "test_fib_10",
            "fullname": "bench.py::test_fib_10",
            "stats": {"min": 1e-5, "max": 9e-5, "mean": 2e-5, "stddev": 5e-6, "median": 1.5e-5, "iqr": 1e-6},
        }
    ],
}
HYPERFINE = {
    "results": [
        {
            "command": "sleep 0.1", "mean": 0.1075, "stddev": 0.0032, "median": 0.1065, "user": 0.0007, "system": 0.001,
            "min": 0.1024, "max": 0.1153, "times": [0.1, 0.11], "exit_codes": [0, 0],
        }
    ]
}  # fmt: skip
GOOGLE = {
    "context": {"date": "2026-01-01", "caches": []},
    "benchmarks": [
        {"name": "BM_fib/10", "run_type": "iteration", "real_time": 214.98, "cpu_time": 213.65, "time_unit": "ns"},
        {"name": "BM_fib/20", "run_type": "iteration", "real_time": 27.5, "cpu_time": 27.3, "time_unit": "us"},
    ],
}


@pytest.mark.parametrize("adapter", ["python_pytest", "python", "magic"])
def test_pytest_benchmark_is_in_seconds(adapter):
    text, name = json.dumps(PYTEST), "bench.py::test_fib_10"
    assert parts(latencies(adapter, text)[name]) == pytest.approx((20_000, 15_000, 25_000))
    assert parts(latencies(adapter, text, Average.MEAN)[name]) == pytest.approx((20_000, 15_000, 25_000))
    assert parts(latencies(adapter, text, Average.MEDIAN)[name]) == pytest.approx((15_000, 14_000, 16_000))


@pytest.mark.parametrize("adapter", ["shell_hyperfine", "shell", "magic"])
def test_hyperfine_is_in_seconds(adapter):
    text, name = json.dumps(HYPERFINE), "sleep 0.1"
    assert parts(latencies(adapter, text)[name]) == pytest.approx((107.5e6, 104.3e6, 110.7e6))
    assert parts(latencies(adapter, text, Average.MEDIAN)[name]) == pytest.approx((106.5e6, 102.4e6, 115.3e6))


def test_a_single_run_of_hyperfine_has_no_deviation():
    single = {"results": [HYPERFINE["results"][0] | {"stddev": None}]}
    found = latencies("shell_hyperfine", json.dumps(single))["sleep 0.1"]
    assert parts(found) == (pytest.approx(107.5e6), None, None)


@pytest.mark.parametrize("adapter", ["cpp_google", "cpp", "magic"])
def test_google_benchmark_is_the_real_time(adapter):
    assert latencies(adapter, json.dumps(GOOGLE)) == {
        "BM_fib/10": MetricValue(214.98),
        "BM_fib/20": MetricValue(27_500.0),
    }


def test_google_benchmarks_that_ended_with_an_error_and_complexities_are_no_times():
    extra = [
        {"name": "BM_broken", "run_type": "iteration", "error_occurred": True, "error_message": "x", "real_time": 0,
         "time_unit": "ns"},
        {"name": "BM_fib_BigO", "run_type": "aggregate", "real_coefficient": 1.2, "big_o": "N", "time_unit": "ns"},
        {"name": "BM_fib_RMS", "run_type": "aggregate", "rms": 0.03},
    ]  # fmt: skip
    text = json.dumps(GOOGLE | {"benchmarks": GOOGLE["benchmarks"] + extra})
    assert list(latencies("cpp_google", text)) == ["BM_fib/10", "BM_fib/20"]


@pytest.mark.parametrize(
    ("adapter", "document"),
    [
        ("python_pytest", PYTEST | {"benchmarks": []}),
        ("python_pytest", PYTEST | {"benchmarks": [{"fullname": "a"}]}),
        ("python_pytest", PYTEST | {"benchmarks": [{"fullname": "a", "stats": {"mean": "1", "stddev": 1}}]}),
        ("python_pytest", PYTEST | {"benchmarks": [{"fullname": "a", "stats": {"mean": 1e308, "stddev": 1e308}}]}),
        ("shell_hyperfine", {"results": [{"command": "a"}]}),
        ("shell_hyperfine", {"results": []}),
        ("cpp_google", GOOGLE | {"benchmarks": [{"name": "a", "real_time": 1, "time_unit": "fortnights"}]}),
        ("cpp_google", GOOGLE | {"benchmarks": [{"name": "a", "real_time": 1, "time_unit": ["ns"]}]}),
        ("cpp_google", {"benchmarks": GOOGLE["benchmarks"]}),
        ("json", PYTEST), ("json", HYPERFINE), ("json", GOOGLE),
        ("python_pytest", HYPERFINE), ("python_pytest", GOOGLE), ("cpp_google", PYTEST), ("shell_hyperfine", GOOGLE),
        ("rust_bench", PYTEST), ("rust_criterion", GOOGLE), ("go_bench", HYPERFINE),
    ],
)  # fmt: skip
def test_an_adapter_refuses_what_is_not_its_format(adapter, document):
    assert parse_results(adapter, json.dumps(document)) is None


@pytest.mark.parametrize("adapter", AdapterName)
@pytest.mark.parametrize(
    "text", ["", "\n", "PASS", "null", "0", "[]", "\0", "\ufffd", "test a ... ok", "time: [1 2 3]"]
)
def test_text_without_results_is_refused_by_each_adapter(adapter, text):
    assert parse_results(adapter, text) is None


def test_numbers_that_are_none_leave_a_line_out():
    for number in ("1.2.3", "...", ",", "9" * 41):
        assert parse_results("rust_bench", f"test a ... bench: {number} ns/iter (+/- 1)") is None


# --- recorded output --------------------------------------------------------------------------------------------------

# The values as the files have them, in nanoseconds.
RECORDED_LATENCIES = {
    ("rust_bench", "rust_bench.txt", None): {
        "tests::copy": (73.50, 73.50 - 46.72, 73.50 + 46.72),
        "tests::fib_10": (130.77, 130.77 - 206.01, 130.77 + 206.01),
        "tests::fib_20": (16_666.82, 16_666.82 - 27_043.42, 16_666.82 + 27_043.42),
    },
    ("rust_criterion", "criterion.txt", None): {
        "fib 20": (26_251.0, 26_029.0, 26_505.0),
        "Fibonacci/Recursive/a long name of the input": (1_058_000.0, 1_056_200.0, 1_060_000.0),
    },
    ("go_bench", "go_bench.txt", None): {
        "BenchmarkFib10-2": (321.3, None, None),
        "BenchmarkFib/n=15-2": (3007.0, None, None),
        "BenchmarkFib/n=20-2": (28_882.0, None, None),
    },
    ("python_pytest", "pytest_benchmark.json", None): {
        "test_bench.py::test_fib_10": (6050.097954972148, -210.11736648873137, 12310.313276433026),
        "test_bench.py::test_fib_15": (100718.20122920299, -151953.09412415056, 353389.49658255654),
    },
    ("python_pytest", "pytest_benchmark.json", Average.MEDIAN): {
        "test_bench.py::test_fib_10": (5683.999916072935, 5476.500518875839, 5891.499313270032),
        "test_bench.py::test_fib_15": (62103.00489328802, 60657.75778552052, 63548.25200105552),
    },
    ("cpp_google", "google_benchmark.json", None): {
        "BM_fib/10": (9149.595401293955, None, None),
        "BM_fib/12": (24717.134441967188, None, None),
        "BM_sum/8/process_time": (519.5340409276835, None, None),
        "BM_sum/32/process_time": (656.4643937508835, None, None),
    },
    ("shell_hyperfine", "hyperfine.json", None): {
        "true": (3_203_269.0, 1_862_875.135172948, 4_543_662.864827052),
        "sleep 0.01": (11_819_194.0, 11_514_311.904979646, 12_124_076.095020354),
    },
    ("shell_hyperfine", "hyperfine.json", Average.MEDIAN): {
        "true": (3_855_460.0, 972_968.0, 4_141_199.0),
        "sleep 0.01": (11_716_511.0, 11_423_977.0, 12_159_367.0),
    },
}


@pytest.mark.parametrize(("adapter", "file", "average"), RECORDED_LATENCIES)
def test_recorded_output_becomes_metrics(adapter, file, average):
    wanted = RECORDED_LATENCIES[adapter, file, average]
    for name in (adapter, "magic"):
        found = latencies(name, recorded(file), average)
        assert {key: parts(metric) for key, metric in found.items()} == {
            key: tuple(None if number is None else pytest.approx(number, rel=1e-8) for number in numbers)
            for key, numbers in wanted.items()
        }


def test_each_recorded_file_is_tested():
    files = {file for _, file, _ in RECORDED_LATENCIES}
    assert {path.name for path in RECORDED.iterdir()} == files | {"ABOUT.md"}
