"""The arithmetic of `benchmarks.compare` and of the process that it measures; nothing here is timed."""

import asyncio
from types import SimpleNamespace

import pytest

from benchmarks import checkout_process, checkouts, compare

TRACE = """2026-11-22 10:00:00.000001\tF\t15\tParse\t "" "BEGIN" 0
2026-11-22 10:00:00.000002\tF\t12\tBind\t "" "" 0 0 0
2026-11-22 10:00:00.000003\tF\t9\tExecute\t "" 0
2026-11-22 10:00:00.000004\tF\t4\tSync
2026-11-22 10:00:00.000005\tB\t10\tCommandComplete\t "BEGIN"
2026-11-22 10:00:00.000006\tB\t5\tReadyForQuery\t T
2026-11-22 10:00:00.000007\tF\t40\tQuery\t "SELECT 'F\t9\tExecute'"
2026-11-22 10:00:00.000008\tB\t5\tReadyForQuery\t T
2026-11-22 10:00:00.000009\tF\t9\tExecute\t "" 0
2026-11-22 10:00:00.000010\tF\t9\tExecute\t "" 0
2026-11-22 10:00:00.000011\tF\t4\tSync
2026-11-22 10:00:00.000012\tB\t5\tReadyForQuery\t I
"""


def test_a_trace_of_libpq_is_counted_by_message_and_not_by_its_text():
    assert checkout_process.trips(TRACE) == {"statements": 4, "trips": 3}


def test_a_lifecycle_is_the_sum_of_its_operations_without_the_empty_answer():
    records = [("submit", {"python_ms": 2.0}), ("claim", {"python_ms": 3.0}), ("empty", {"python_ms": 9.0})]
    records += [("submit", {"python_ms": 4.0}), ("claim", {"python_ms": 3.0}), ("empty", {"python_ms": 9.0})]
    found = checkouts.summarized(records, jobs=1, mode="timed")
    assert found == {
        "submit": {"python_ms": 3.0},
        "claim": {"python_ms": 3.0},
        "lifecycle": {"python_ms": 6.0},
        "empty": {"python_ms": 9.0},
    }


def test_a_batch_call_is_divided_by_its_jobs():
    found = checkouts.summarized([("submit_many", {"trips": 64}), ("empty", {"trips": 1})], jobs=64, mode="counted")
    assert found["submit_many"] == found["lifecycle"] == {"trips": 1.0}
    assert found["empty"] == {"trips": 1}


def test_counts_are_medians_so_that_one_written_page_does_not_count():
    records = [("claim", {"wal_bytes": size}) for size in (3000, 3010, 11_000)]
    assert checkouts.summarized(records, jobs=1, mode="counted")["claim"] == {"wal_bytes": 3010}
    assert checkouts.summarized(records, jobs=1, mode="timed")["claim"]["wal_bytes"] > 5000


def test_a_ratio_is_the_median_of_the_pairs():
    assert compare.ratios([1, 2, 10], [0.5, 1, 20])["ratio"] == 0.5
    assert compare.ratios([4.0], [1.0]) == {"ratio": 0.25, "quartile_1": 0.25, "quartile_3": 0.25}
    assert compare.ratios([0.0], [1.0]) == {}, "nothing is not a divisor"


class Side:
    """Records in which order the sides are asked."""

    order: list[str] = []

    def __init__(self, name, cost):
        self.name, self.cost = name, cost

    def slice(self, scenario, mode, rounds):
        Side.order.append(f"{self.name} {mode}")
        names = checkouts.TIMED if mode == "timed" else checkouts.COUNTED
        return {"submit": dict.fromkeys(names, self.cost), "lifecycle": dict.fromkeys(names, self.cost)}


def test_the_sides_are_measured_in_turns_and_each_pair_in_the_other_order():
    Side.order = []
    found = compare.in_turns([Side("a", 4), Side("b", 2)], "five", pairs=3, rounds=1)
    timed = [name.split()[0] for name in Side.order if name.endswith("timed")][2:]  # without the warm-up
    assert timed == ["a", "b", "b", "a", "a", "b"]
    result = compare.figures(found)
    assert result["submit"]["python_ms"] == {"values": [4, 2], "ratio": 0.5, "quartile_1": 0.5, "quartile_3": 0.5}
    assert result["lifecycle"]["wal_bytes"]["ratio"] == 0.5
    assert len(compare.lines(result, ["a", "b"])) == 1 + 2 * 5


def test_one_checkout_alone_has_no_ratio():
    result = compare.figures(compare.in_turns([Side("a", 4)], "five", pairs=2, rounds=1))
    assert result["submit"]["python_ms"] == {"values": [4]}


def test_an_answer_that_is_not_success_ends_the_slice():
    async def refuse(scope, receive, send):
        assert (await receive())["body"] == b'{"x": 1}'
        await send({"type": "http.response.start", "status": 409})
        await send({"type": "http.response.body", "body": b'{"code":"stale_lease"}'})

    meter = checkout_process.CallMeter(SimpleNamespace())
    calls = checkout_process.Calls(refuse, {"token": "t", "workers": [("w", "t")], "body": {}}, meter)
    with pytest.raises(checkout_process.UnexpectedAnswer, match="heartbeat: 409"):
        asyncio.run(calls.call("heartbeat", "/x", {"x": 1}, "t"))


def test_the_scenarios_of_both_modules_are_the_same():
    assert tuple(checkout_process.SCENARIOS) == checkouts.SCENARIOS
    assert checkout_process.MANY == checkouts.MANY
