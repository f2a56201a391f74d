"""The arithmetic of `make bench`; nothing here is timed."""

import importlib
import inspect
import json
import re
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from benchmarks import __main__ as bench
from benchmarks import costs, minimal, peers_runner, pgbench, plot, sandbox, table
from benchmarks.histogram import Tally, spread
from benchmarks.idle_claims import Held, free_intervals, unused


def test_a_figure_that_is_missing_is_shown_as_missing():
    shown = {row.figure: row for row in table.rows({"peers": {"prefect": {"missing": "pip failed"}}})}
    figure = "lifecycles/s of five calls ÷ Prefect"
    assert shown[figure] == table.Row(figure, "-", "≥ 11", None)
    assert shown["Prefect, over HTTP, flow runs/s"].value == "- (pip failed)"


@pytest.mark.parametrize("is_part", [True, False])
def test_the_table_of_a_part_has_what_it_has_measured(is_part, capsys):
    found = {"form": "quick", "seconds": 1, "left_out": [], "failed": {}, "masks": 1.25}
    bench._display(found, is_part=is_part)
    shown = capsys.readouterr().out
    assert "1,000 masks" in shown
    assert ("Prefect" in shown) is not is_part


def test_a_counter_that_begins_anew_loses_nothing():
    """PostgreSQL's statistics begin at 0 after a crash, which one scenario causes."""
    assert bench.increases([2, 2, 9, 0, 1, 1]) == 8
    assert bench.increases([5]) == 0


AIMED = {
    "lifecycles_vs_prefect": {"five": 11.0, "three": 17.9, "two": None},
    "lifecycles_vs_servers": {"three": 1.49},
    "one_token": 0.9,
    "claims_vs_minimal": 0.2,
    "bulk_vs_procrastinate": 4.99,
    "postgres_vs_minimal": 7.0,
    "heartbeat_vs_empty": 5.01,
    "statements": 15,
    "trips": 16,
    "wal_kb": 8.2,
    "latency_ms": {"p50": 6.0, "p99": 11.9},
    "beats_vs_http": 5.0,
    "channel_claim_vs_poll": 1.26,
    "channel_lifecycles_vs_http": 1.1,
    "channel_memory_vs_poll": 3.0,
    "flat_jobs": 1.3,
    "flat_leases": 1.2,
    "open_snapshot_pages": 2.01,
    "pull_vs_registry": 0.5,
    "image_memory": 1.31,
    "artifacts": 0.69,
    "artifacts_memory_mib": 32,
    "artifacts_bucket_mb": 1.01,
    "log_mb": 0.49,
    "log_flat": 1.2,
    "masks": 1.51,
    "finalize_mb": 32,
    "followers_p99_ms": 99.9,
    "log_calls": 0.7,
    "actions_claims": 0.59,
    "used_tokens": 1.2,
    "sse_ms": {"1": 20.0, "100": 99.9, "1000": 100.0},
    "sse_cost": 0.85,
    "log_followers_cost": 1.21,
    "webhooks_vs_bare": 0.4,
    "graphql_vs_rest": 2.0,
    "dashboard_ms": 50.0,
    "api_jobs_ms": 49.9,
    "document_004": {"scheduling_ms": 99.9, "lease_ms": 50.0, "fan_out_ms": 499.0, "exceeded": 0},
    "export_memory": 1.21,
    "verify_vs_hashing": 0.4,
    "replay_match": 1.0,
    "replay_verify_vs_hashing": 0.49,
    "core_cost": {"baseline": "14da870", "ratio": 0.97},
    "end_of_job_ms": 4.9,
    "traced_vs_bare": 1.81,
    "trace_python": 0.25,
    "limits_exceeded": 0,
    "deadlocks": 1,
    "audit": ["I1: …"],
}


def test_an_aim_is_met_or_not_by_what_was_measured():
    assert [row.met for row in table.aims(AIMED)] == [
        *(True, False, None),  # Prefect
        False,  # Temporal and Hatchet
        True,  # many clients with one token
        *(True, False, True, False, True, False, True),  # claims, batch calls, CPU, statements, trips, WAL
        *(False, True),  # latency: an aim below 6 is not met by 6
        *(True, False, False, True, None),  # channels: heartbeats, claims, executions, memory; specs are missing
        *(True, False, None, None),  # leases, jobs; lanes and blocked jobs are missing
        False,  # a snapshot that stays open
        *(True, False),  # images: pulls, memory
        *(False, True, False),  # artifacts: MB/s, memory, bytes with a bucket
        *(False, True, False, True, True, None),  # logs: MB/s, many chunks, masks, memory, followers; reads are missing
        *(True, False, True),  # workflow jobs: log calls, claims, used tokens
        *(True, True, False, True, False),  # streams: 1, 100, 1,000 listeners, lifecycles, followers of a log
        *(True, None),  # deliveries; a dead receiver is missing
        *(True, False, True),  # GraphQL, dashboard, lists
        *(True, False, True, True),  # document 004: scheduling, lease, fan-out, limits
        *(False, True),  # audit bundles: memory, lines verified
        *(True, False),  # replays: those that match, records confirmed
        True,  # the commit before
        *(True, False, None, True),  # the worker: end of a job, traced compile, the trace's Python; untraced is missing
        *(True, None, False, False),  # limits, lost jobs, deadlocks, audit
    ]


def test_every_row_of_the_issue_is_among_the_aims():
    words = " ".join(row.figure for row in table.aims({}))
    for part in ("five", "three", "two", "Prefect", "claims/s over HTTP ÷ minimal", "procrastinate", "four commits"):
        assert part in words
    for part in ("over a channel", "waiting channel", "executions/s", "100 hardware specs"):
        assert part in words
    for part in (
        "log chunks of 4 KiB",
        "20 secrets",
        "used tokens",
        "1,000 listeners at 100 events/s",
        "500 followers",
        "webhooks",
        "GraphQL",
        "dashboard",
        "/api/jobs",
        "half of the lifecycle rate",
        "memory for a bundle",
        "verified/s",
        "replays by the worker that match",
        "confirmed/s",
        "before evidence",
        "heartbeat",
        "statements",
        "trips",
        "WAL",
        "p50",
        "p99",
        "leases",
        "lanes",
        "blocked",
        "kill -9",
    ):
        assert part in words


def test_the_last_line_has_every_figure_that_has_an_aim():
    missing = {"flat_lanes", "blocked_ahead", "killed", "sandbox", "claim_100_specs", "dead_receiver"}
    assert set(AIMED) | missing <= set(bench.PROMISED)


@pytest.mark.parametrize("module", bench.SCENARIOS.values())
def test_each_scenario_has_a_module_that_measures_it(module):
    measure = importlib.import_module(f"benchmarks.{module}").measure
    assert len(inspect.signature(measure).parameters) == 3


def test_a_run_that_has_used_up_its_time_leaves_out_what_has_no_aim():
    order = list(bench.SCENARIOS)
    without_aim = {"fairness", "profile"}
    assert set(order[-len(without_aim) :]) == without_aim


def test_the_markdown_is_one_table():
    lines = table.markdown(json.loads("{}")).splitlines()[2:]
    assert {line.count("|") for line in lines} == {5}


def test_a_load_that_did_nothing_has_no_rate():
    assert Tally(begins=0, ends=1).summary()["rate"] is None


def test_the_spread_of_many_is_in_milliseconds():
    assert spread([0.001 * number for number in range(1, 101)]) == {"n": 100, "p50": 51.0, "p99": 100.0, "max": 100.0}


def test_a_recorded_statement_gets_another_worker_and_new_ids():
    moved = pgbench._moving('SELECT f(\'{"worker":"wrk_00000000000000000800000017"}\'::json, 800000017)')
    assert moved == ("SELECT f((E'{\"worker\"\\x3a\"wrk_00000000000000000' || :worker::text || E'\"}')::json, :worker)")
    assert pgbench._moving(f"SELECT 'rtl_{'a' * 26}'") == f"SELECT (E'rtl_' || {pgbench.NEW_ID} || E'')"


def test_a_claim_by_one_function_is_one_statement_of_the_script():
    script = pgbench.script_of(["SELECT * FROM claim(800000256, ARRAY['rtl_" + "a" * 26 + "'])"], 256)
    assert script == [
        "\\set worker random(800000001, 800000256)",
        f"SELECT * FROM claim(:worker, ARRAY[(E'rtl_' || {pgbench.NEW_ID} || E'')]);",
    ]


def test_statements_without_the_function_of_a_claim_are_no_claim():
    with pytest.raises(pgbench.PgbenchFailed, match="SQL function"):
        pgbench.script_of(["SELECT * FROM claim(800000256)", "SELECT 1"], 9)


PGBENCH = """transaction type: claim.sql
number of transactions actually processed: 1234
number of failed transactions: 0 (0.000%)
tps = 617.5 (without initial connection time)
"""


def test_the_result_of_pgbench_is_read_from_its_output():
    assert pgbench.parsed(PGBENCH, "", 0) == pgbench.PgbenchResult(617.5, 1234)
    with pytest.raises(pgbench.PgbenchFailed, match="deadlock"):
        pgbench.parsed(PGBENCH, "ERROR: deadlock", 2)


@pytest.mark.parametrize("script", [minimal.CLAIM, minimal.LIFECYCLE])
def test_the_minimal_scripts_have_no_variable_that_is_not_set(script):
    text = "\n".join(script)
    known = {"worker", "lease", "job"} if "gset" in text else {"worker"}
    assert set(re.findall(r"(?<!:):([a-z]+)", text)) <= known


def test_the_minimal_lifecycle_has_four_statements():
    assert len([part for part in minimal.LIFECYCLE if not part.startswith("\\")]) == 4


def test_the_cost_of_a_call_is_compared_within_each_slice():
    def slice_of(python, postgres, empty):
        row = {"python_ms": python, "postgres_ms": postgres}
        return {"heartbeat": row, "lifecycle": row, "empty": {"python_ms": empty, "postgres_ms": 0.0}}

    slices = [slice_of(2.0, 6.0, 1.0), slice_of(4.0, 12.0, 2.0), slice_of(9.0, 99.0, 3.0)]
    counts = {"five": {"lifecycle": {"statements": 14.0, "trips": 13.0, "wal_bytes": 8_765.0}}}
    found = costs.summary(slices, [2.0, 4.0, 3.0], counts)
    assert (found["heartbeat_vs_empty"], found["postgres_vs_minimal"]) == (2.0, 3.0)
    assert (found["statements"], found["trips"], found["wal_kb"]) == (14.0, 13.0, 8.77)
    assert found["costs"]["calls"]["heartbeat"] == {"python_ms": 4.0, "postgres_ms": 12.0}


def test_a_heartbeat_is_compared_with_a_call_without_an_operation():
    timed = {"heartbeat": {"python_ms": 1.2}, "floor": {"python_ms": 0.48}, "lifecycle": {"python_ms": 6.0}}
    assert costs.vs_floor(timed) == 2.5
    assert costs.vs_floor({}) is None


def test_counts_that_could_not_be_taken_are_missing():
    row = {"python_ms": 1.0, "postgres_ms": 1.0}
    found = costs.summary([{"heartbeat": row, "lifecycle": row, "empty": row}], [1.0], {})
    assert found["statements"] is found["trips"] is found["wal_kb"] is None


def test_an_engine_is_compared_with_the_bare_process_of_the_same_round():
    bare = [{"seconds": 0.001, "processor": 0.001}, {"seconds": 0.010, "processor": 0.001}] * 3
    engine = [{"seconds": 0.020, "processor": 0.010}, {"seconds": 0.200, "processor": 0.010}] * 3
    found = sandbox.compared({"bare": bare, "bubblewrap": engine})
    assert found["bubblewrap"] == {"seconds_ms": 110.0, "processor_ms": 10.0, "vs_bare": 20.0}
    assert "vs_bare" not in found["bare"]


def test_each_layout_is_compared_with_the_peers(monkeypatch):
    figures = {
        "prefect": {"lifecycles_per_s": 30.0},
        "procrastinate": {"bulk_jobs_per_s": 1000.0},
        "temporal": {"lifecycles_per_s": 160.0},
        "hatchet": {"lifecycles_per_s": 100.0},
    }
    monkeypatch.setattr(peers_runner, "_figures", lambda _cluster, _sizes, name: figures.get(name, {"missing": "no"}))
    flows = {"five": {"rate": 240.0}, "three": {"rate": 390.0}, "two": {"rate": None}}
    before = {"lifecycles_per_s": {"five": 240.0, "two": None}, "layouts": {"asgi-1": flows}}
    found = peers_runner.measure(None, None, before | {"bulk_lifecycles_per_s": 3100.0})
    assert found["lifecycles_vs_prefect"] == {"five": 8.0, "two": None}
    assert found["layouts_vs_prefect"] == {"asgi-1": {"five": 8.0, "three": 13.0, "two": None}}
    assert found["lifecycles_vs_servers"] == {"five": 1.5, "two": None}, "with the better one"
    assert found["bulk_vs_procrastinate"] == 3.1


def test_other_numbers_stay_as_they_are():
    assert pgbench._moving("SELECT 8000000170, 80000001, '2026-11-21 08:00:00'") == (
        "SELECT 8000000170, 80000001, E'2026-11-21 08\\x3a00\\x3a00'"
    )


@pytest.mark.parametrize("sizes", [(1000, 1_000_000), (1,)])
def test_a_chart_is_a_picture_of_all_its_points(sizes):
    points = [SimpleNamespace(size=size, large=3.1, small=2.9) for size in sizes]
    drawn = ET.fromstring(plot.Chart("A claim's cost & more", "jobs", points).drawn())
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}circle")) == 2 * len(sizes)


# Leases of a tenant that may have two at once: one waits from 30 to 35.
TWO = [Held(8, 10, 30), Held(20, 20, 40), Held(35, 35, 50)]


def test_free_intervals_are_those_with_jobs_left():
    intervals = free_intervals(2, TWO, begins=5)
    assert intervals.free == [(5, 20), (30, 35)]
    assert intervals.waits == [5, 10, 5], "from the free slot, or from the claim before"


def test_a_lease_whose_end_was_not_answered_keeps_its_place():
    assert free_intervals(1, [Held(10, 10, 30), Held(20, 20, 40)], begins=10).free == [(10, 10)]


def test_a_job_that_a_claim_is_taking_does_not_wait():
    assert free_intervals(2, [*TWO[:2], Held(31, 35, 50)], begins=5).free == [(5, 20), (30, 31)]
    assert free_intervals(2, [*TWO[:2], Held(29, 35, 50)], begins=5).free == [(5, 20), (30, 30)]


@pytest.mark.parametrize(
    ("empty", "missed"), [((31, 34), 1), ((29, 34), 0), ((31, 36), 0), ((6, 9), 1), ((21, 29), 0), ((36, 90), 0)]
)
def test_a_claim_that_found_nothing_counts_if_a_job_was_there_all_the_time(empty, missed):
    run = {"began": 5, "empties": [empty]}
    assert unused({"a": 2}, {"a": TWO}, run)["missed"] == missed
