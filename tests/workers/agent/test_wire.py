from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.agent.conftest import LEASE_ID, claim_body
from workers.agent.errors import ProtocolError
from workers.agent.http import wire
from workers.engines.contract import Isolation, TraceLevel


def test_a_claim_becomes_values() -> None:
    lease = wire.lease(claim_body(execution__egress=["packages.example.org"], retry_of="rtj_0"))
    job = lease.job
    assert lease.lease_id == LEASE_ID
    assert (lease.fence, lease.ttl_seconds, lease.heartbeat_interval_seconds, lease.acknowledge_within_seconds) == (
        1,
        120,
        20,
        30,
    )
    assert (job.job_id, job.org_slug, job.project_slug, job.retry_of) == ("rtj_01jjob", "acme", "web", "rtj_0")
    assert (job.source.ref, job.source.pull_request_number) == ("refs/heads/main", 7)
    assert job.execution.command == ("true",)
    assert job.execution.least_isolation is Isolation.NAMESPACES
    assert job.execution.egress == ("packages.example.org",)
    assert (job.trigger.kind, job.trigger.actor) == ("manual", "ann")


def test_what_it_does_not_know_is_ignored() -> None:
    body = claim_body() | {"new": 1}
    body["job"] |= {"attempt": 3, "newer": {"x": 1}}
    assert wire.lease(body).job.job_id == "rtj_01jjob"


def test_what_is_absent_and_optional_has_its_default() -> None:
    body = claim_body()
    for name in ("least_isolation", "egress", "working_directory"):
        del body["job"]["execution"][name]
    for name in ("ref", "pull_request_number"):
        del body["job"]["source"][name]
    execution = wire.lease(body).job.execution
    assert execution.least_isolation is Isolation.NAMESPACES, "never weaker without a value"
    assert (execution.egress, execution.working_directory) == ((), ".")
    assert execution.trace is TraceLevel.FULL
    assert wire.lease(claim_body(execution__trace="network")).job.work.trace is TraceLevel.NETWORK


def test_the_capability_is_not_shown() -> None:
    assert LEASE_ID not in repr(wire.lease(claim_body()))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"job_id": "../x"}, "job_id"),
        ({"job_id": None}, "job_id"),
        ({"job_id": "x" * 65}, "job_id"),
        ({"fence": "1"}, "fence"),
        ({"fence": True}, "fence"),
        ({"lease_ttl_seconds": 0}, "lease_ttl_seconds"),
        ({"lease_ttl_seconds": float("nan")}, "lease_ttl_seconds"),
        ({"heartbeat_interval_seconds": "20"}, "heartbeat_interval_seconds"),
        ({"trigger": None}, "trigger"),
        ({"source__git_commit": "HEAD"}, "git_commit"),
        ({"source__git_commit": "a" * 40 + "\n"}, "git_commit"),
        ({"source__repo_url": 5}, "repo_url"),
        ({"execution__command": []}, "command"),
        ({"execution__command": "true"}, "command"),
        ({"execution__command": [None]}, "command"),
        ({"execution__command": ["a\0b"]}, "command"),
        ({"execution__timeout_seconds": True}, "timeout_seconds"),
        ({"execution__timeout_seconds": -1}, "timeout_seconds"),
        ({"execution__allow_network": 1}, "allow_network"),
        ({"execution__allow_exec": None}, "allow_exec"),
        ({"execution__least_isolation": "strongest"}, "least_isolation"),
        ({"execution__trace": "more"}, "trace"),
        ({"execution__egress": "all"}, "egress"),
    ],
)
def test_what_is_wrong_is_named_and_not_repeated(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.lease(claim_body(**changes))
    assert str(caught.value) == named


@pytest.mark.parametrize("lease_id", [None, "", "a/b", "rtl_\n", "x" * 65, "..%2f", 7])
def test_a_lease_id_that_is_no_path_segment_is_refused(lease_id: object) -> None:
    with pytest.raises(ProtocolError):
        wire.lease(claim_body() | {"lease_id": lease_id})


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, st.sampled_from(["lease_id", "job", "execution", "source", "trigger", "command", "fence"]))
def test_nothing_but_malformed_comes_of_garbage(garbage: Any, where: str) -> None:
    body = claim_body()
    for holder in (body, body["job"], body["job"]["execution"]):
        if where in holder:
            holder[where] = garbage
    try:
        wire.lease(body)
        wire.lease(garbage)
    except ProtocolError:
        pass


def pack_body(**changes: Any) -> dict[str, Any]:
    body = claim_body(job_type="pack-run", source=None, heartbeat_interval_seconds=10, lease_ttl_seconds=20)
    del body["job"]["execution"]
    body["job"]["request"] = {
        "payload": {"packId": "scan"},
        "plan": {
            "name": "scan",
            "steps": ["true", "false"],
            "working_directory": "work",
            "environment": {"A": "1"},
            "artifacts": [{"type": "file", "path_glob": "*.txt"}],
            "allow_network": True,
            "inputs": {},
        },
        "inputs": {"imageRef": "nginx", "max-level": 7, "dry": True},
        "timeout_seconds": 60,
        "allow_network": False,
        "least_isolation": "namespaces",
        "egress": ["example.org"],
    } | changes
    return body


def test_a_pack_run_is_steps_with_its_inputs_as_variables() -> None:
    job = wire.lease(pack_body()).job
    assert job.steps is not None
    assert (job.steps.steps, job.steps.working_directory, job.source) == (("true", "false"), "work", None)
    assert job.steps.environment == {
        "A": "1",
        "INPUT_IMAGEREF": "nginx",
        "INPUT_MAX_LEVEL": "7",
        "INPUT_DRY": "true",
    }
    assert [pattern.path_glob for pattern in job.steps.artifacts] == ["*.txt"]
    assert (job.work.timeout_seconds, job.work.allow_network, job.work.egress) == (60, False, ("example.org",))
    assert job.work.least_isolation is Isolation.NAMESPACES
    assert job.work.trace is TraceLevel.NONE
    assert wire.lease(pack_body(trace="full")).job.work.trace is TraceLevel.FULL


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"plan": None}, "plan"),
        ({"plan": {"steps": []}}, "steps"),
        ({"inputs": {"a": None}}, "inputs"),
        ({"inputs": {"a b": "x"}}, "environment"),
        ({"inputs": {"a": "x\0"}}, "environment"),
        ({"allow_network": None}, "allow_network"),
        ({"timeout_seconds": None}, "timeout_seconds"),
    ],
)
def test_a_wrong_pack_run_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.lease(pack_body(**changes))
    assert str(caught.value) == named


@pytest.mark.parametrize(
    ("ttl", "interval", "expected"), [(20, 10, 20 / 6), (60, 30, 10), (120, 20, 20), (600, 300, 100), (120, 1, 1)]
)
def test_six_heartbeats_fit_into_a_lease(ttl: int, interval: int, expected: float) -> None:
    """A lease of two intervals would end with one answer that is lost."""
    lease = wire.lease(claim_body(lease_ttl_seconds=ttl, heartbeat_interval_seconds=interval))
    assert lease.heartbeat_interval_seconds == pytest.approx(expected)
