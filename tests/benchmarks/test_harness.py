"""The benchmark's own arithmetic; what it measures, only `make bench` says."""

import importlib
import inspect
import json
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from benchmarks import __main__ as bench
from benchmarks import pgbench, plot, table
from benchmarks.histogram import Tally, spread
from benchmarks.idle_claims import Held, room_of, unused


def test_a_figure_that_is_missing_is_shown_as_missing():
    shown = {row.figure: row for row in table.rows({"peers": {"prefect": {"missing": "pip failed"}}})}
    assert shown["single calls ÷ Prefect"] == table.Row("single calls ÷ Prefect", "-", "≥ 10", None)
    assert shown["Prefect, over HTTP, flow runs/s"].value == "- (pip failed)"


def test_an_aim_is_met_or_not_by_what_was_measured():
    found = {"claims_vs_pgbench": 0.51, "flat_jobs": 1.3, "limits_exceeded": 0, "audit": ["I1: …"]}
    met = {row.figure: row.met for row in table.rows(found)}
    assert met["one job a call ÷ pgbench"] is True
    assert met["a claim, 0 jobs waiting ÷ 1,000"] is False
    assert met["limits exceeded, 64 workers, 0 claims"] is True
    assert met["audit"] is False


def test_the_last_line_has_every_figure_that_was_promised():
    asked = "lifecycles_per_s lifecycles_vs_prefect bulk_vs_procrastinate claims_vs_pgbench bulk_claims_vs_pgbench"
    asked += " flat_jobs flat_lanes blocked_ahead latency_ms limits_exceeded idle_polls"
    assert set(asked.split()) <= set(bench.PROMISED)


@pytest.mark.parametrize("module", bench.SCENES.values())
def test_each_scenario_has_a_module_that_measures_it(module):
    measure = importlib.import_module(f"benchmarks.{module}").measure
    assert len(inspect.signature(measure).parameters) == 3


def test_the_markdown_is_one_table():
    lines = table.markdown(json.loads("{}")).splitlines()[2:]
    assert {line.count("|") for line in lines} == {5}


def test_a_load_that_did_nothing_has_no_rate():
    assert Tally(begins=0, ends=1).told()["rate"] is None


def test_the_spread_of_many_is_in_milliseconds():
    assert spread([0.001 * number for number in range(1, 101)]) == {"n": 100, "p50": 51.0, "p99": 100.0, "max": 100.0}


def test_a_recorded_statement_gets_another_job_and_new_ids():
    moved = pgbench._moving(
        'UPDATE x SET head = \'{"id":700000017,"job_ulid":"rtj_00000000000000000700000017"}\'::json WHERE id = 700000017'
    )
    assert moved == (
        'UPDATE x SET head = (E\'{"id"\\x3a\' || :job::text || E\',"job_ulid"\\x3a"rtj_00000000000000000\' '
        "|| :job::text || E'\"}')::json WHERE id = :job"
    )
    assert pgbench._moving(f"SELECT 'rtl_{'a' * 26}'") == f"SELECT (E'rtl_' || {pgbench.NEW_ID} || E'')"


def test_other_numbers_stay_as_they_are():
    assert pgbench._moving("SELECT 7000000170, 70000001, '2026-11-21 08:00:00'") == (
        "SELECT 7000000170, 70000001, E'2026-11-21 08\\x3a00\\x3a00'"
    )


@pytest.mark.parametrize("sizes", [(1000, 1_000_000), (1,)])
def test_a_chart_is_a_picture_of_all_its_points(sizes):
    points = [SimpleNamespace(size=size, large=3.1, small=2.9) for size in sizes]
    drawn = ET.fromstring(plot.Chart("A claim's cost & more", "jobs", points).drawn())
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}circle")) == 2 * len(sizes)


# Leases of a tenant that may have two at once: one waits from 30 to 35.
TWO = [Held(8, 10, 30), Held(20, 20, 40), Held(35, 35, 50)]


def test_room_is_what_a_tenant_had_while_jobs_were_left():
    room = room_of(2, TWO, begins=5)
    assert room.free == [(5, 20), (30, 35)]
    assert room.waits == [5, 10, 5], "from when there was room, or from the claim before"


def test_a_lease_whose_end_nobody_heard_keeps_its_place():
    assert room_of(1, [Held(10, 10, 30), Held(20, 20, 40)], begins=10).free == [(10, 10)]


def test_a_job_to_which_somebody_is_on_the_way_waits_for_nobody():
    assert room_of(2, [*TWO[:2], Held(31, 35, 50)], begins=5).free == [(5, 20), (30, 31)]
    assert room_of(2, [*TWO[:2], Held(29, 35, 50)], begins=5).free == [(5, 20), (30, 30)]


@pytest.mark.parametrize(
    ("empty", "missed"), [((31, 34), 1), ((29, 34), 0), ((31, 36), 0), ((6, 9), 1), ((21, 29), 0), ((36, 90), 0)]
)
def test_a_claim_that_found_nothing_is_held_against_what_was_there_all_the_while(empty, missed):
    told = {"began": 5, "empties": [empty]}
    assert unused({"a": 2}, {"a": TWO}, told)["missed"] == missed
