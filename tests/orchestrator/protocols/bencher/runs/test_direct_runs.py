"""`POST /v0/run` without a job: the results in the request are read at once."""

import pytest

from orchestrator.results.models import Metric, Report, Testbed
from runtime_jobs.models import Job
from tests.orchestrator.protocols.bencher.runs.world import (
    BMF,
    TIMES,
    accepted,
    direct_body,
    job_body,
    post_run,
    refused,
)

pytestmark = pytest.mark.django_db


def test_results_become_metrics_at_once(mia):
    report = accepted(mia, direct_body(BMF, settings={"adapter": "json"}))
    metric = Metric.objects.get()
    assert (metric.benchmark.name, metric.measure.slug, metric.value) == ("fibonacci", "latency", 12.5)
    assert str(metric.report.uuid) == report["uuid"]
    assert not Job.objects.exists()


def test_the_report_has_the_times_of_the_request_and_neither_spec_nor_job(mia, spec):
    report = accepted(mia, direct_body(BMF))
    row = Report.objects.get()
    assert (report["start_time"], report["end_time"]) == (TIMES["start_time"], TIMES["end_time"])
    assert (row.spec, row.job, row.testbed.name, row.testbed.spec) == (None, None, "laptop", None)
    assert report.get("job") is None


def test_each_result_is_an_iteration_and_a_fold_makes_one(mia):
    slower = BMF.replace("12.5", "13.5")
    accepted(mia, direct_body(BMF, slower))
    assert list(Metric.objects.order_by("iteration").values_list("iteration", "value")) == [(0, 12.5), (1, 13.5)]
    Metric.objects.all().delete()
    accepted(mia, direct_body(BMF, slower, settings={"fold": "mean"}))
    assert list(Metric.objects.values_list("iteration", "value")) == [(0, 13.0)]


def test_results_that_the_adapter_cannot_read_are_400_and_leave_nothing(mia):
    refused(lambda: post_run(mia, direct_body("no benchmark", settings={"adapter": "json"})), 400, "results")
    refused(lambda: post_run(mia, direct_body(BMF, "no benchmark", branch="new", testbed="New")), 400, "results")


def test_no_results_are_400(mia):
    """Document 002: a run has either results or an image."""
    refused(lambda: post_run(mia, direct_body()), 400, "results", "image")


@pytest.mark.parametrize("missing", ["start_time", "end_time", "results"])
def test_times_and_results_are_required(mia, missing):
    body = direct_body(BMF)
    del body[missing]
    refused(lambda: post_run(mia, body), 400, missing)


def test_the_testbed_comes_from_the_context_and_is_localhost_by_default(mia):
    body = direct_body(BMF)
    del body["testbed"]
    accepted(mia, body)
    accepted(mia, body | {"context": {"bencher.dev/v0/testbed/os": "Linux"}})
    assert list(Testbed.objects.order_by("id").values_list("name", flat=True)) == ["localhost", "Linux"]


def test_the_spec_of_a_testbed_stays_unless_it_is_reset(mia, spec):
    accepted(mia, job_body(spec="two-cores") | {"testbed": "Machine"})
    accepted(mia, direct_body(BMF, testbed="Machine"))
    assert Testbed.objects.get().spec == spec
    accepted(mia, direct_body(BMF, testbed="Machine", spec_reset=True))
    assert Testbed.objects.get().spec is None


def test_a_body_above_the_limit_is_400(mia, settings):
    assert settings.BODY_LIMITS["/v0/run"] == 4 << 20
    accepted(mia, direct_body(BMF + " " * (2 << 20)))
    refused(lambda: post_run(mia, direct_body(BMF + " " * (4 << 20))), 400, "maximum size of 4194304 bytes")


def test_the_same_idempotency_key_stores_metrics_once(mia):
    body = direct_body(BMF, idempotency_key="019a2b1c-0000-7000-8000-00000000000a")
    assert accepted(mia, body) == accepted(mia, body)
    assert Metric.objects.count() == 1
