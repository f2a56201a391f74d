"""Document 004's metrics: counted once each from the event history, the same in every process, with few labels."""

import re
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection, transaction

from leases.models import Breaker, BreakerState
from orchestrator.core import metrics_aggregation
from orchestrator.core.metrics_aggregation import EventCounter
from orchestrator.core.metrics_models import Count, MetricsPosition
from orchestrator.http.observability import job_metrics
from orchestrator.processes.scheduler import Scheduler
from orchestrator.services import cancellation, claiming, expiry, heartbeat, job_end, late_results, retries
from orchestrator.services.submission import submit
from orchestrator.step_logs import job_log_writes
from orchestrator.step_logs.job_log_events import START, JobLogEvents
from runtime_jobs.db_time import database_now
from runtime_jobs.models import Job
from runtime_jobs.specs import JOB_TYPES, PayloadSpec
from tests.factories import (
    ALICE,
    LATE_POLICY,
    TIMINGS,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    demanding,
    limited,
    offer,
    submission,
    submitted,
    submitted_steps,
)
from tests.orchestrator.http.test_metrics import scrape, value
from tests.packs import simple_payload

pytestmark = pytest.mark.django_db(transaction=True)  # the event history is read below the oldest open transaction


@pytest.fixture
def tally():
    """A clock's, which has begun to count."""
    counting_clock = EventCounter()
    counting_clock.advance()
    return counting_clock


def failed(project, reason="worker_error"):
    submitted(project)
    lease = claimed().lease
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason=reason)
    return lease.job_id


def test_failures_retries_and_cancels_are_counted_by_type_and_reason(tally, organization):
    project = organization.projects.get()
    for reason in ("worker_error", "worker_error", "checkout_failed"):
        job = failed(project, reason)
    again = retries.retry(job_ulid=job, actor=ALICE, reason="again").job
    cancellation.cancel(job_ulid=again.job_ulid, actor=ALICE, deadline_seconds=30)
    tally.advance()
    text = scrape()
    assert value(text, 'job_failures_total{jobType="runtime",reason="worker_error"}') == 2
    assert value(text, 'job_failures_total{jobType="runtime",reason="checkout_failed"}') == 1
    assert value(text, 'job_retry_total{jobType="runtime"}') == 1
    assert value(text, 'job_cancellations_total{job_type="runtime",reason="requested"}') == 1


def test_each_event_counts_once_in_as_many_rounds_as_it_takes(tally, organization, monkeypatch):
    monkeypatch.setattr(metrics_aggregation, "MAX_ROWS", 3)
    for _ in range(3):
        failed(organization.projects.get())
    read = [tally.advance() for _ in range(8)]
    assert read[0] == 3
    assert read[-1] == 0
    assert Count.objects.get(name="job_failures").value == 3
    EventCounter().advance()  # another clock, which has taken over
    assert Count.objects.get(name="job_failures").value == 3


def test_a_round_counts_some_pieces_and_no_more(tally, organization, monkeypatch):
    monkeypatch.setattr(metrics_aggregation, "MAX_ROWS", 1)
    for _ in range(3):
        failed(organization.projects.get())
    tally.go_on()
    assert tally.advance() == 1, "there is more to read"
    for _ in range(5):
        tally.go_on()
    assert Count.objects.get(name="job_failures").value == 3
    assert tally.advance() == 0


def test_what_an_open_transaction_has_written_is_not_passed_over(tally, organization):
    """A lower key may be committed later than a higher one."""
    project = organization.projects.get()
    with closing(connection.copy()) as second, second.cursor() as other:
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        failed(project)
        assert tally.advance() == 0
        other.execute("COMMIT")
    assert tally.advance() > 0
    assert Count.objects.get(name="job_failures").value == 1


def test_what_happened_before_it_began_is_not_counted(organization):
    failed(organization.projects.get())
    tally = EventCounter()
    assert tally.advance() == 0
    assert not Count.objects.filter(name="job_failures").exists()


def test_after_a_restore_with_new_transaction_numbers_it_goes_on_from_there(tally, organization):
    MetricsPosition.objects.update(xid=2**40)
    tally.advance()
    failed(organization.projects.get())
    assert tally.advance() > 0


def test_how_long_jobs_take_is_a_histogram(tally, organization):
    project = organization.projects.get()
    failed(project)
    waiting = submitted(project)
    cancellation.cancel(job_ulid=waiting.job_ulid, actor=ALICE, deadline_seconds=30)
    tally.advance()
    text = scrape()
    name = 'job_latency_seconds_{}{{jobType="runtime",phase="{}"}}'
    assert value(text, name.format("count", "queued")) == 2
    assert value(text, name.format("count", "total")) == 2
    assert value(text, name.format("count", "running")) == 1, "one never ran"
    assert 0 < value(text, name.format("sum", "total")) < 60
    buckets = re.findall(r'job_latency_seconds_bucket\{jobType="runtime",le="([^"]+)",phase="total"\} (\S+)', text)
    assert [bound for bound, _ in buckets] == [*map(str, metrics_aggregation.BOUNDS), "+Inf"]
    heights = [float(height) for _, height in buckets]
    assert heights == sorted(heights)
    assert heights[-1] == 2


def test_a_heartbeat_counts_when_it_has_extended_a_lease(tally, organization):
    submitted(organization.projects.get())
    lease = claimed().lease
    tally.advance()
    before = value(scrape(), 'lease_extensions_total{jobType="runtime"}') or 0
    heartbeat.renew(lease_ulid=lease.lease_ulid, worker=lease.worker, phase="executing")
    tally.advance()
    tally.advance()
    assert value(scrape(), 'lease_extensions_total{jobType="runtime"}') == before + 1


def at_its_limit(organization):
    limited(organization.slug, max_active=1)
    worker = WorkerFactory()
    for _ in range(2):
        submitted(organization.projects.get())
    claimed(worker)
    assert claiming.claim(worker=worker, offer=offer(worker)) is None


def test_a_wait_for_a_limit_counts_once_and_for_the_tenant_that_a_setting_names(tally, organization, settings):
    settings.METRICS_TENANTS = []
    at_its_limit(organization)
    for _ in range(3):
        tally.advance()
    assert value(scrape(), 'quota_exceeded_total{tenant=""}') == 1
    settings.METRICS_TENANTS = ["named"]
    named = OrganizationFactory(slug="named")
    ProjectFactory(organization=named)
    at_its_limit(named)
    tally.advance()
    for tenant in ("named", ""):
        assert value(scrape(), f'quota_exceeded_total{{tenant="{tenant}"}}') == 1
        assert value(scrape(), f'limit_waits_total{{kind="organization",tenant="{tenant}"}}') == 1


def test_the_depth_is_that_of_each_type_and_of_tenants_that_a_setting_names(organization, settings, monkeypatch):
    settings.METRICS_TENANTS = []
    text = scrape()
    assert value(text, 'job_queue_depth{jobType="runtime",tenant=""}') == 0
    assert value(text, 'job_queue_depth{jobType="steps",tenant=""}') == 0
    for _ in range(3):
        submitted(organization.projects.get())
    other = OrganizationFactory(slug="other")
    submitted(ProjectFactory(organization=other))
    assert value(scrape(), 'job_queue_depth{jobType="runtime",tenant=""}') == 4
    settings.METRICS_TENANTS = ["other"]
    text = scrape()
    assert value(text, 'job_queue_depth{jobType="runtime",tenant="other"}') == 1
    assert value(text, 'job_queue_depth{jobType="runtime",tenant=""}') == 3
    assert "sandtrace" not in text
    monkeypatch.setattr(job_metrics, "MAX_PER_LANE", 2)
    assert value(scrape(), 'job_queue_depth{jobType="runtime",tenant=""}') == 2
    monkeypatch.setattr(job_metrics, "MAX_JOBS", 1)
    assert sum(map(float, re.findall(r"^job_queue_depth\{[^}]*\} (\S+)", scrape(), re.MULTILINE))) == 1


def test_the_oldest_tenants_have_a_label_by_default(organization, monkeypatch):
    young = ProjectFactory(organization=OrganizationFactory(slug="young"))
    for project in (organization.projects.get(), young):
        submitted(project)
    for limit, expected in ((50, {organization.slug: 1, "young": 1, "": 0}), (1, {organization.slug: 1, "": 1})):
        monkeypatch.setattr(metrics_aggregation, "MAX_TENANTS", limit)
        found = re.findall(r'^job_queue_depth\{jobType="runtime",tenant="([^"]*)"\} (\S+)', scrape(), re.MULTILINE)
        assert {tenant: float(number) for tenant, number in found} == expected


def test_jobs_that_a_limit_holds_back_wait_too(organization, settings):
    settings.METRICS_TENANTS = []
    at_its_limit(organization)
    assert value(scrape(), 'job_queue_depth{jobType="runtime",tenant=""}') == 1


def test_the_state_of_breakers_is_the_worst_of_each_type(organization):
    assert value(scrape(), 'circuit_breaker_state{jobType="runtime"}') == 0
    Breaker.objects.create(org_slug="a", job_type="runtime", state=BreakerState.HALF_OPEN)
    assert value(scrape(), 'circuit_breaker_state{jobType="runtime"}') == 1
    Breaker.objects.create(org_slug="b", job_type="runtime", state=BreakerState.OPEN)
    assert value(scrape(), 'circuit_breaker_state{jobType="runtime"}') == 2
    assert value(scrape(), 'circuit_breaker_state{jobType="steps"}') == 0


def test_a_clock_counts_in_each_round_and_outlives_what_it_cannot_count(organization, monkeypatch):
    clock = Scheduler(period=1)
    assert clock.round()
    failed(organization.projects.get())
    assert clock.round()
    assert Count.objects.get(name="job_failures").value == 1
    monkeypatch.setattr(metrics_aggregation, "_sql", lambda _name: "SELECT 1 / 0")
    assert clock.round()
    connection.close()
    connection.close_pool()  # its connections hold the leader's lock as long as they live


def executed(priority: int, waited: float) -> Job:
    """A job of a runner that began to execute so many seconds after its submit."""
    job = submitted(priority=150)
    with transaction.atomic():
        demanding(job, priority=priority)
    claim = claimed()
    heartbeat.report(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, phase="executing")
    job.refresh_from_db()
    Job.objects.filter(pk=job.pk).update(created_at=job.executing_at - timedelta(seconds=waited))
    return job


def test_the_queue_time_is_counted_by_the_tier_of_the_priority(tally, organization):
    for priority, waited in ((400, 0.2), (300, 3), (200, 7), (150, 20), (100, 50), (50, 2000), (0, 90_000)):
        executed(priority, waited)
    tally.advance()
    text = scrape()
    name = 'job_queue_duration_seconds_%s{job_type="runtime",tier="%s"}'
    counts = {tier: value(text, name % ("count", tier)) for tier in ("enterprise", "team", "free", "unclaimed")}
    assert counts == {"enterprise": 2, "team": 1, "free": 2, "unclaimed": 2}
    assert value(text, name % ("sum", "free")) == pytest.approx(70)
    bucket = 'job_queue_duration_seconds_bucket{job_type="runtime",le="%s",tier="unclaimed"}'
    assert [value(text, bucket % bound) for bound in ("900.0", "3600.0", "+Inf")] == [0, 1, 2]


def test_claims_updates_and_late_results_are_counted(tally, organization):
    job = submitted_steps(policy=LATE_POLICY)
    claim = claimed(job_types=("steps",))
    heartbeat.report(lease_ulid=claim.lease.lease_ulid, worker=claim.lease.worker, phase="executing")
    expiry.expire(job_ulid=job.job_ulid, now=database_now() + timedelta(days=1))
    late_results.complete_late(job_ulid=job.job_ulid, worker=claim.lease.worker)
    late_results.settle(job_ulid=job.job_ulid)
    tally.advance()
    text = scrape()
    assert value(text, 'job_claims_total{job_type="steps"}') == 1
    assert value(text, 'job_late_results_total{job_type="steps"}') == 1
    for state in ("queued", "leased", "executing", "lost", "processing", "succeeded"):
        assert value(text, f'job_updates_total{{job_type="steps",state="{state}"}}') == 1, state


def test_every_metric_is_in_the_documentation():
    documented = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    found = {line.split()[2] for line in scrape().splitlines() if line.startswith("# TYPE ")}
    own = {name for name in found if not name.startswith(("process_", "python_")) and not name.endswith("_created")}
    assert {name for name in own if name not in documented} == set()
    assert len(own) > 30


def test_the_metrics_of_document_004_have_its_names_and_labels(tally, organization):
    failed(organization.projects.get())
    tally.advance()
    text = scrape()
    labels = {
        "job_queue_depth": {"jobType", "tenant"},
        "job_latency_seconds_count": {"jobType", "phase"},
        "job_failures_total": {"jobType", "reason"},
        "circuit_breaker_state": {"jobType"},
    }
    for name, expected in labels.items():
        found = re.findall(rf"^{name}\{{([^}}]*)\}}", text, re.MULTILINE)
        assert found, name
        assert {frozenset(re.findall(r'(\w+)="', one)) for one in found} == {frozenset(expected)}, name
    for name in ("job_retry_total", "lease_extensions_total", "quota_exceeded_total"):
        assert f"# TYPE {name} counter" in text


def test_pack_runs_have_metrics_of_their_own(tally, organization):
    text = scrape()
    assert value(text, "pack_run_heartbeats_total") == value(text, "pack_run_artifacts_total") == 0
    given = submission(organization.projects.get(), PayloadSpec("pack-run", simple_payload(organization), 300))
    policy = JOB_TYPES["pack-run"].policy(**TIMINGS)
    submit(given, policy=policy, default_pool="shared-linux", actor=ALICE)
    taken = claimed(job_types=("pack-run",))
    lease = {"lease_ulid": taken.lease.lease_ulid, "worker": taken.lease.worker}
    heartbeat.renew(**lease)
    tally.advance()
    assert value(scrape(), "pack_run_heartbeats_total") == 1
    artifacts = [job_end.ArtifactRef("log", f"https://example.com/{name}") for name in "ab"]
    job_end.complete(**lease, exit_code=0, artifacts=artifacts)
    tally.advance()
    text = scrape()
    assert value(text, "pack_run_artifacts_total") == 2
    assert value(text, "pack_run_duration_seconds_count") == 1
    assert value(text, 'pack_run_duration_seconds_bucket{le="+Inf"}') == 1


def test_the_lag_of_a_followed_log_of_a_pack_run_is_measured(organization):
    given = submission(organization.projects.get(), PayloadSpec("pack-run", simple_payload(organization), 300))
    policy = JOB_TYPES["pack-run"].policy(**TIMINGS)
    submit(given, policy=policy, default_pool="shared-linux", actor=ALICE)
    taken = claimed(job_types=("pack-run",))
    lease = {"lease_ulid": taken.lease.lease_ulid, "worker": taken.lease.worker}
    job_log_writes.append_log(**lease, seq=0, chunk=b"one\n")
    name = "pack_run_logs_stream_lag_seconds_count"
    before = value(scrape(), name)
    first = JobLogEvents().read(taken.job.job_ulid, START)
    assert value(scrape(), name) == before, "the begin of a log may be old"
    job_log_writes.append_log(**lease, seq=1, chunk=b"two\n")
    assert b"chunk" in JobLogEvents().read(taken.job.job_ulid, first.position).data
    assert value(scrape(), name) == before + 1


def test_incidents_are_counted_by_kind(tally, organization):
    failed(organization.projects.get())
    text = scrape()
    assert value(text, 'orchestrator_incidents{kind="job"}') == 1
    assert value(text, 'orchestrator_incidents{kind="breaker"}') == 0
