"""Manifests of jobs: what is an output, what differs from one execution to the next, what is not fixed."""

import copy

import pytest

from orchestrator.ingest.examples import UPLOAD
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES
from runtime_jobs.specs.manifests import (
    CACHES,
    MAX_MEMBER_BYTES,
    NETWORK,
    RUN_RULES,
    UNTRACED,
    JobProducts,
    ProducedFile,
    reported_manifest,
    run_manifest,
    stable_run,
)

RUN = UPLOAD.value
NONE = JobProducts()


def ended(**columns) -> Job:
    values = {"job_type": "steps", "state": "succeeded", "exit_code": 0, "payload_digest": "0" * 64}
    return Job(**values | {"spec": {}, "result": {}, "timeout_seconds": 60} | columns)


def members(run, path):
    """The values that a rule removes."""
    first, *rest = path
    if first == "*":
        return [value for item in run for value in members(item, rest)]
    if first not in run:
        return []
    return members(run[first], rest) if rest else [run[first]]


class TestRuns:
    @pytest.mark.parametrize("rule", RUN_RULES, ids=lambda rule: ".".join(rule.path))
    def test_each_rule_removes_its_member(self, rule):
        assert members(stable_run(RUN), rule.path) == []

    def test_most_rules_concern_members_of_the_example(self):
        assert sum(bool(members(RUN, rule.path)) for rule in RUN_RULES) > len(RUN_RULES) // 2

    def test_two_executions_of_one_command_have_one_form(self):
        again = copy.deepcopy(RUN)
        again["metadata"] |= {"job_id": "rtj_01j00000000000000000000002", "started_at": "2027-01-01T00:00:00Z"}
        again["metadata"]["finished_at"] = again["summary"]["timestamp"] = "2027-01-01T00:01:00Z"
        again["summary"]["total_syscalls"] += 7
        for process in again["processes"]["items"]:
            process["pid"] += 1000
        again["files"]["items"].reverse()
        assert again != RUN
        assert stable_run(again) == stable_run(RUN)

    def test_another_file_or_exit_code_is_another_form(self):
        for change in ("files", "outcome"):
            other = copy.deepcopy(RUN)
            if change == "outcome":
                other["outcome"]["exit_code"] = 1
            else:
                other["files"] |= {"truncated": False}
                other["files"]["items"][0]["path"] = "/etc/other"
            first = copy.deepcopy(RUN)
            first["files"]["truncated"] = False if change == "files" else first["files"]["truncated"]
            assert stable_run(other) != stable_run(first)

    def test_temporary_names_are_replaced(self):
        one, other = ({"files": {"items": [{"path": path}], "truncated": False}} for path in ("/tmp/a1/x", "/tmp/b2/x"))
        assert stable_run(one) == stable_run(other) == {"files": {"items": [{"path": "/tmp/*/x"}], "truncated": False}}
        one, other = ({"files": {"items": [{"path": path}]}} for path in ("/proc/17/maps", "/proc/4711/maps"))
        assert stable_run(one) == stable_run(other)
        assert stable_run({"files": {"items": [{"path": "/work/tmp/a"}]}})["files"]["items"] == [
            {"path": "/work/tmp/a"}
        ]

    def test_the_items_of_a_truncated_list_are_left_out(self):
        run = {"files": {"items": [{"path": "/a"}], "total": 900, "truncated": True}}
        assert stable_run(run) == {"files": {"items": [], "total": 900, "truncated": True}}

    def test_a_large_member_is_replaced_by_its_digest(self):
        large = {"metadata": {"note": "x" * MAX_MEMBER_BYTES}}
        assert stable_run(large)["metadata"]["digest"].startswith("sha256:")
        assert stable_run(large) != stable_run({"metadata": {"note": "y" * MAX_MEMBER_BYTES}})

    def test_the_document_itself_stays_as_it_was(self):
        before = copy.deepcopy(RUN)
        stable_run(RUN)
        assert before == RUN

    def test_a_run_that_is_stored_elsewhere_is_inconclusive(self):
        found = run_manifest(ended(job_type="runtime"), NONE)
        assert found["inconclusive"] == ["Its run is not stored here."]
        with_run = run_manifest(ended(job_type="runtime"), JobProducts(run=RUN))
        assert with_run["inconclusive"] == []
        assert with_run["outputs"]["run"] == stable_run(RUN)
        assert with_run["environment"]["sandboxVersion"] == RUN["metadata"]["sandbox"]["tool_version"]


class TestReported:
    def test_the_times_of_steps_are_no_outputs(self):
        steps = [{"index": 0, "exit_code": 0, "started_at": "2026-01-01T00:00:00Z", "finished_at": None}]
        found = reported_manifest(ended(result={"steps": steps, "outputs": {"findings": 3}, "verdict": "pass"}), NONE)
        assert found["outputs"] == {
            "state": "succeeded", "exitCode": 0, "failureReason": None, "verdict": "pass",
            "outputs": {"findings": 3}, "cursors": {}, "steps": [0], "artifacts": {},
        }  # fmt: skip

    def test_artifacts_have_the_digest_of_the_server_else_that_of_the_worker(self):
        files = [
            {"type": "file", "path": "a", "size_bytes": 1, "sha256": "a" * 64},
            {"type": "file", "path": "b", "size_bytes": 1, "sha256": "b" * 64},
        ]
        products = JobProducts(files=(ProducedFile("a", 1, "c" * 64), ProducedFile("b", 1, None)))
        found = reported_manifest(ended(result={"files": files}), products)
        digests = {name: file["digest"] for name, file in found["outputs"]["artifacts"].items()}
        assert digests == {"a": "sha256:" + "c" * 64, "b": "sha256:" + "b" * 64}
        assert found["inconclusive"] == []

    @pytest.mark.parametrize(
        ("columns", "products", "reason"),
        [
            ({}, JobProducts(files=(ProducedFile("a", 1, None),)), "The artifact a has no digest."),
            ({}, JobProducts(references=("https://x/1",)), "1 artifacts are stored elsewhere, without a digest."),
            ({"result": {"files_omitted": 2}}, NONE, "The worker has left out 2 artifacts."),
            ({"state": "canceled"}, NONE, "It was canceled."),
            (
                {"state": "failed", "failure_reason": "worker_lost", "failure_class": "worker"},
                NONE,
                "It failed for a reason outside of the job: worker_lost.",
            ),
            (
                {"state": "failed", "failure_reason": "timed_out", "failure_class": "policy"},
                NONE,
                "It failed for a reason outside of the job: timed_out.",
            ),
        ],
    )
    def test_what_cannot_be_compared_is_said(self, columns, products, reason):
        assert reported_manifest(ended(**columns), products)["inconclusive"] == [reason]

    def test_a_failed_command_is_an_output(self):
        job = ended(state="failed", exit_code=7, failure_reason="command_failed", failure_class="job")
        found = reported_manifest(job, NONE)
        assert (found["inconclusive"], found["outputs"]["exitCode"]) == ([], 7)

    def test_the_plan_of_a_pack_run_is_an_input(self):
        job = ended(job_type="pack-run", spec={"payload": {}, "cursors": {"vex": "7"}, "plan": {"steps": ["true"]}})
        inputs = reported_manifest(job, NONE)["inputs"]
        assert inputs["cursors"] == {"vex": "7"}
        assert inputs["planHash"].startswith("sha256:")


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (ended(job_type="runtime", allow_network=False, trace="full"), ()),
        (ended(job_type="runtime", allow_network=True, trace="full"), (NETWORK,)),
        (ended(job_type="runtime", allow_network=True, trace="none"), (NETWORK, f"{UNTRACED} none.")),
        (ended(job_type="runtime", trace="network"), (f"{UNTRACED} network.",)),
        (ended(spec={"image": None, "caches": []}), ()),
        (ended(spec={"image": "alpine@sha256:" + "0" * 64}), ()),
        (ended(spec={"image": "alpine:3"}), ("Its image alpine:3 is named by a tag, and not by a digest.",)),
        (ended(spec={"caches": [{"key": "npm"}]}), (CACHES,)),
        (ended(allow_network=True), (NETWORK,)),
        (ended(job_type="scan", spec={"payload": {"imageRef": "nginx:latest"}}), ()),
        (ended(job_type="pack-run", spec={"payload": {}, "plan": {"allow_network": True}}), (NETWORK,)),
        (ended(job_type="pack-run", spec={"payload": {}, "plan": {"steps": []}}), ()),
    ],
)
def test_what_is_not_fixed_is_named(job, expected):
    assert JOB_TYPES[job.job_type].unpinned(job) == expected


def test_types_whose_jobs_belong_to_something_else_have_no_manifest():
    without = {name for name, job_type in JOB_TYPES.items() if job_type.manifest is None}
    assert without == {name for name, job_type in JOB_TYPES.items() if not job_type.is_retryable} == {"oci", "actions"}
