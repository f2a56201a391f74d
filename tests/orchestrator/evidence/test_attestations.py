"""`GET /api/jobs/{id}/attestation`: SLSA provenance on artifacts or the result, verified by securesystemslib."""

import hashlib
import json

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from orchestrator.artifacts.operations import complete_upload
from orchestrator.artifacts.piece_operations import begin_lease_artifact
from orchestrator.evidence.attestations import provenance_of
from orchestrator.evidence.dsse import verify
from orchestrator.evidence.signing_keys import public_keys
from runtime_jobs.events import result_hash
from runtime_jobs.models import StoredArtifact
from tests.api_client import refused
from tests.factories import COMMIT, claimed, submitted
from tests.orchestrator.protocols.stella.requests import claim, complete, fail, ok, row_of, submit

pytestmark = pytest.mark.django_db


def attested(caller, shown):
    envelope = ok(caller.get(f"/api/jobs/{shown['jobId']}/attestation"))
    return json.loads(verify(envelope, public_keys(), payload_type="application/vnd.in-toto+json")), envelope


def test_an_artifact_is_its_subject(alice, worker):
    shown = submit(alice, cursors={"advisory": "abc"})
    found = claim(worker)
    digest = hashlib.sha256(b"report").hexdigest()
    for name, is_complete in (("report.json", True), ("never-sent.json", False)):
        row = begin_lease_artifact(lease_ulid=found.lease.lease_ulid, worker=worker, name=name, size_bytes=6)
        if is_complete:
            complete_upload(StoredArtifact, row.pk, size_bytes=6, sha256=digest, publish=lambda: None)
    complete(found, verdict="pass", environment={"engine": "docker", "versions": {"trivy": "0.5"}})
    statement, _ = attested(alice, shown)
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert statement["subject"] == [{"name": "report.json", "digest": {"sha256": digest}}]
    definition, details = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    assert definition["externalParameters"]["payload"] == {"imageRef": "nginx:latest", "options": {}}
    assert definition["externalParameters"]["cursors"] == {"advisory": "abc"}
    assert definition["internalParameters"]["environment"] == {"engine": "docker", "versions": {"trivy": "0.5"}}
    assert definition["resolvedDependencies"] == [
        {"name": "request", "digest": {"sha256": shown["payloadDigest"].removeprefix("sha256:")}}
    ]
    assert details["builder"]["id"].endswith(f"/workers/{worker.worker_id}")
    assert details["byproducts"] == [{"name": "event-history", "digest": {"sha256": row_of(shown).event_head}}]


def test_without_artifacts_the_result_is_its_subject(alice, worker):
    shown = submit(alice)
    fail(claim(worker))
    statement, _ = attested(alice, shown)
    assert statement["subject"] == [{"name": "result", "digest": {"sha256": result_hash(row_of(shown))}}]
    assert statement["predicate"]["buildDefinition"]["internalParameters"]["status"] == "failed"


def test_securesystemslib_verifies_it_by_the_published_key(alice, worker):
    shown = submit(alice)
    complete(claim(worker))
    statement, envelope = attested(alice, shown)
    (published,) = ok(alice.get("/v1/keys"))["keys"]
    key = SSlibKey.from_crypto(public_keys()[0])
    assert key.keyid == published["key_id"] == envelope["signatures"][0]["keyid"]
    theirs = Envelope.from_dict(envelope)
    assert list(theirs.verify([key], 1)) == [key.keyid]
    assert json.loads(theirs.payload) == statement


def test_the_same_job_has_the_same_attestation(alice, worker):
    shown = submit(alice)
    complete(claim(worker))
    assert attested(alice, shown) == attested(alice, shown)


def test_a_job_of_a_repository_names_the_commit(project, worker):
    job = submitted(project)
    claimed(worker)
    inputs = provenance_of(job)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert inputs[1] == {"uri": f"git+{job.repo_url}", "digest": {"gitCommit": COMMIT}}


def test_a_job_that_has_not_ended_has_none(alice):
    shown = submit(alice)
    refused(lambda: alice.get(f"/api/jobs/{shown['jobId']}/attestation"), 409, "not_final")


def test_without_a_key_nothing_is_attested(alice, worker, settings):
    shown = submit(alice)
    complete(claim(worker))
    settings.SIGNING_KEY = "broken"
    refused(lambda: alice.get(f"/api/jobs/{shown['jobId']}/attestation"), 503, "signing_unavailable")
