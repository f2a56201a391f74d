"""Versions of packs: registered once, never changed, and required at the admission of pack runs."""

from datetime import timedelta

import pytest
from django.db import DatabaseError, transaction

from leases.errors import StaleLease
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.services import cancellation, expiry, heartbeat, packs, retries
from orchestrator.services import submission as service_submission
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, PayloadDigestMismatch, ResourceConflict
from runtime_jobs.models import Job, OperatorEvent, PackVersion
from runtime_jobs.specs import PayloadSpec, configured_policy
from tests.factories import ALICE, OrganizationFactory, ProjectFactory, claimed, submission
from tests.orchestrator.services.test_races import together
from tests.packs import PLAN, payload_of, register

pytestmark = pytest.mark.django_db


@pytest.fixture
def project():
    return ProjectFactory(organization=OrganizationFactory(slug="acme"))


@pytest.fixture
def pack(project):
    return register(project.organization)


def submit(project, payload):
    spec = PayloadSpec("pack-run", payload, timeout_seconds=60)
    policy = configured_policy("pack-run")
    return service_submission.submit(
        submission(project, spec), policy=policy, default_pool="shared-linux", actor=ALICE
    ).job


def test_the_same_plan_again_changes_nothing(project, pack):
    again, is_new = packs.register_pack_version(
        organization=project.organization, pack_id=pack.pack_id, version=pack.version, plan=PLAN, cause=Cause(ALICE)
    )
    assert (again.pk, is_new) == (pack.pk, False)
    (event,) = OperatorEvent.objects.all()
    assert (event.action, event.org_slug) == ("pack.registered", "acme")
    assert event.target == "pack:acme:vuln-scan-and-report 1.2.0"


def test_a_version_has_one_plan(project, pack):
    with pytest.raises(ResourceConflict, match="A version never changes"):
        register(project.organization, PLAN | {"steps": ["false"]})
    assert PackVersion.objects.get().plan == PLAN
    assert register(project.organization, PLAN | {"steps": ["false"]}, version="1.2.1").plan["steps"] == ["false"]
    assert register(OrganizationFactory(slug="other"), PLAN | {"steps": ["false"]}).version == "1.2.0"


def test_the_database_refuses_a_change(pack):
    with pytest.raises(DatabaseError, match="never changes"), transaction.atomic():
        PackVersion.objects.update(plan={"steps": ["false"]})


@pytest.mark.django_db(transaction=True)
def test_of_two_plans_at_once_one_is_registered(project):
    def registering(step):
        return lambda: register(project.organization, {"steps": [step]})

    results = together(registering("true"), registering("false"))
    assert sorted(type(result).__name__ for result in results) == ["PackVersion", "ResourceConflict"]
    assert PackVersion.objects.count() == OperatorEvent.objects.count() == 1


class TestAdmission:
    def test_a_run_has_the_plan_and_the_heartbeats_that_it_names(self, project, pack):
        job = submit(project, payload_of(pack, heartbeatCadence=10))
        assert job.spec["plan"] == Job.objects.get().spec["plan"] == PLAN
        assert (job.heartbeat_interval_seconds, job.lease_ttl_seconds, job.allow_network) == (10, 18, False)
        assert run_audit(chains=True) == []

    def test_the_network_is_that_of_the_plan(self, project):
        open_pack = register(project.organization, PLAN | {"allow_network": True}, version="2")
        assert submit(project, payload_of(open_pack)).allow_network is True

    def test_without_a_hash_the_version_decides(self, project, pack):
        assert submit(project, payload_of(pack, planHash=None)).state == "queued"

    def test_another_hash_is_refused_with_the_right_one(self, project, pack):
        wrong = "sha256:" + "0" * 64
        with pytest.raises(PayloadDigestMismatch, match=pack.plan_hash):
            submit(project, payload_of(pack, planHash=wrong))
        assert not Job.objects.exists()

    @pytest.mark.parametrize(
        "changes",
        [{"packVersion": "1.2.1"}, {"packId": "another"}, {"packId": None}, {"heartbeatCadence": 9}, {"inputs": {}}],
        ids=str,
    )
    def test_what_does_not_fit_the_version_is_refused(self, project, pack, changes):
        with pytest.raises(Invalid) as refused:
            submit(project, payload_of(pack, **changes))
        assert list(refused.value.errors) == ["payload"]
        assert not Job.objects.exists()

    def test_the_pack_of_another_organization_is_not_there(self, pack):
        stranger = ProjectFactory(organization=OrganizationFactory(slug="stranger"))
        with pytest.raises(Invalid, match=r"The version 1\.2\.0 of the pack vuln-scan-and-report is not registered\."):
            submit(stranger, payload_of(pack))

    def test_each_attempt_has_the_plan(self, project, pack):
        job = submit(project, payload_of(pack))
        cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=1)
        second = retries.retry(job_ulid=job.job_ulid, actor=ALICE, reason="again").job
        assert (second.spec, second.lease_ttl_seconds) == (job.spec, 58)

    def test_a_plan_that_was_changed_by_hand_is_found(self, project, pack):
        job = submit(project, payload_of(pack))
        Job.objects.filter(pk=job.pk).update(spec=job.spec | {"plan": PLAN | {"steps": ["false"]}})
        (finding,) = run_audit()
        assert (finding.code, finding.broken_for) == ("P1", (job.job_ulid,))


def test_a_silent_worker_is_found_within_two_heartbeats(project, pack):
    job = submit(project, payload_of(pack, heartbeatCadence=10))
    found = claimed(job_types=("pack-run",))
    lease = {"lease_ulid": found.lease.lease_ulid, "worker": found.lease.worker}
    last = heartbeat.renew(**lease, now=database_now() + timedelta(seconds=5)).now
    assert expiry.expire(job_ulid=job.job_ulid, now=last + timedelta(seconds=17.9)) is None
    assert expiry.expire(job_ulid=job.job_ulid, now=last + timedelta(seconds=18)).state == "failed"
    with pytest.raises(StaleLease):
        heartbeat.renew(**lease)
