"""Pack runs: hash of a plan, references, inputs, heartbeats, and what a lease contains."""

import hashlib

import pytest

from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES, PayloadSpec, packs

PLAN = {
    "inputs": {"imageRef": {"required": True}, "max-level": {"default": 7}, "dry": {}},
    "steps": ["true"],
    "artifacts": [{"path_glob": "*.json"}],
    "allow_network": True,
}
REFERENCE = {"packId": "scan", "packVersion": "1.2.0"}
ROOT = "rtj_01kkygkagq0jk17bx6y1w8c3df"
CONFINED = {"least_isolation": "namespaces", "egress": ["example.org"]}


def test_the_hash_is_that_of_the_canonical_form_as_it_was_sent():
    canonical = b'{"environment":{"A":"\xc3\xa9"},"steps":["true"]}'
    assert packs.plan_hash({"steps": ["true"], "environment": {"A": "é"}}) == hashlib.sha256(canonical).hexdigest()
    assert packs.plan_hash(PLAN) != packs.plan_hash(packs.runnable_plan(PLAN))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"packId": None}, "packId"),
        ({"packId": "../x"}, "packId"),
        ({"packVersion": 1}, "packVersion"),
        ({"packVersion": "1/2"}, "packVersion"),
        ({"planHash": "sha256:0"}, "planHash"),
        ({"planHash": ["sha256:0"]}, "planHash"),
        ({"inputs": []}, None),
        ({"inputs": ["x"]}, "inputs"),
        ({"heartbeatCadence": 9}, "heartbeatCadence"),
        ({"heartbeatCadence": 301}, "heartbeatCadence"),
        ({"heartbeatCadence": "30"}, "heartbeatCadence"),
        ({"heartbeatCadence": True}, "heartbeatCadence"),
        ({"heartbeatCadence": 10}, None),
        ({"heartbeatCadence": 300, "another": {"member": 1}}, None),
    ],
)
def test_a_wrong_reference_is_named(changes, named):
    errors = packs.reference_errors(REFERENCE | changes)
    assert [error.partition(":")[0] for error in errors] == ([named] if named else [])


@pytest.mark.parametrize(
    ("inputs", "errors"),
    [
        ({"imageRef": "nginx"}, []),
        ({"imageRef": "nginx", "max-level": 9, "dry": True}, []),
        ({}, ["inputs: imageRef is required."]),
        ({"imageRef": "nginx", "typo": 1}, ["inputs: The plan declares no input 'typo'."]),
        (
            {"imageRef": 1.5},
            ["inputs: imageRef: Must be a text, a whole number or a boolean. Send other values as a text."],
        ),
    ],
)
def test_inputs_are_those_that_the_plan_declares(inputs, errors):
    assert packs.input_errors(PLAN, REFERENCE | {"inputs": inputs}) == errors


def test_texts_of_inputs_are_bounded():
    for value in ("x" * 8193, "a\0b"):
        assert "A text has at most" in packs.input_errors(PLAN, {"inputs": {"imageRef": value}})[0]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"inputs": {"a-b": {}, "A_B": {}}}, "plan.inputs"),
        ({"inputs": {"1st": {}}}, "plan.inputs"),
        ({"inputs": {"a": {"required": True, "default": 1}}}, "plan.inputs"),
        ({"inputs": {f"a{number}": {} for number in range(65)}}, "plan.inputs"),
        ({"environment": {"INPUT_A": "x"}}, "plan.environment"),
        ({"environment": {"A B": "x"}}, "plan.environment"),
        ({"steps": ["x" * 16_000] * 20}, "plan"),
        ({}, None),
    ],
)
def test_a_contradictory_plan_is_named(changes, path):
    assert list(packs.plan_errors(PLAN | changes)) == ([path] if path else [])


def test_a_lease_has_the_plan_the_inputs_and_the_permissions_of_the_job():
    payload = REFERENCE | {"inputs": {"imageRef": "nginx"}}
    job = Job(**PayloadSpec("pack-run", payload, 60, plan=PLAN).columns(), allow_network=False, root_job_ulid=ROOT)
    request = JOB_TYPES["pack-run"].serialize_for_lease(job, CONFINED)["request"]
    assert request["inputs"] == {"imageRef": "nginx", "max-level": 7}
    assert request["plan_hash"] == "sha256:" + packs.plan_hash(PLAN)
    assert request["plan"] == {
        **PLAN,
        "name": None,
        "environment": {},
        "working_directory": ".",
        "artifacts": [{"type": "file", "path_glob": "*.json"}],
    }
    assert request["allow_network"] is False, "a replay without network has the plan with it"
    assert (request["egress"], request["payload"], request["timeout_seconds"]) == (["example.org"], payload, 60)


def test_a_job_that_is_older_than_packs_has_no_plan():
    job = Job(**PayloadSpec("pack-run", REFERENCE, 60).columns(), root_job_ulid=ROOT)
    assert "plan" not in job.spec
    assert "plan" not in JOB_TYPES["pack-run"].serialize_for_lease(job, CONFINED)["request"]


def test_the_plan_is_no_part_of_the_digest_and_stays_with_the_job():
    spec = PayloadSpec("pack-run", REFERENCE, 60, plan=PLAN)
    assert spec.digest == PayloadSpec("pack-run", REFERENCE, 60).digest
    assert JOB_TYPES["pack-run"].from_job(Job(**spec.columns())) == spec


@pytest.mark.parametrize(
    ("cadence", "terms"),
    [
        (10, {"heartbeat_interval_seconds": 10, "lease_ttl_seconds": 18}),
        (300, {"heartbeat_interval_seconds": 300, "lease_ttl_seconds": 598}),
        (None, {}),
        ("30", {}),
    ],
)
def test_a_lease_lasts_two_heartbeats(cadence, terms):
    spec = PayloadSpec("pack-run", REFERENCE | {"heartbeatCadence": cadence}, 60)
    assert JOB_TYPES["pack-run"].own_terms(spec) == terms
