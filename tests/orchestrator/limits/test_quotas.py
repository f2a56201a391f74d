"""A quota is three limits that change together: in one transaction, with one event, from one version to the next."""

import pytest
from django.db import connection

from leases.models import Limit, LimitKind, LimitSlot
from leases.scheduling.quotas import UNSET, read_quota
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.limits import quotas
from orchestrator.services import claiming, job_end
from runtime_jobs.errors import Invalid, OperatorOnly, VersionConflict
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.states import LEASED_STATES
from tests.factories import (
    ALICE,
    OPERATOR,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    limited,
    offer,
    submitted,
)
from tests.orchestrator.services.test_races import refused, together

ORG = "sandtrace"


@pytest.fixture
def project(db):
    return ProjectFactory(organization=OrganizationFactory(slug=ORG))


def change(actor=ALICE, *, if_versions=None, job_type="*", **changes):
    return quotas.set_quota(
        org_slug=ORG, job_type=job_type, changes=changes, cause=Cause(actor, "test"), if_versions=if_versions
    )


def terms(job_type="*") -> dict[str, tuple]:
    rows = Limit.objects.filter(org_slug=ORG, key=job_type, scope="organization")
    return {row.kind: (row.max_active, row.per_hour, row.burst) for row in rows}


def changes_recorded() -> list[tuple]:
    return list(OperatorEvent.objects.order_by("id").values_list("action", "before", "after"))


@pytest.mark.django_db
class TestChanges:
    def test_all_its_limits_change_with_one_event(self, project):
        quota = change(OPERATOR, max_active=50, per_hour=500, burst=10, emergency_max_active=5)
        assert terms() == {
            "organization": (50, None, None), "rate": (None, 500, 10), "emergency": (5, None, None),
        }  # fmt: skip
        after = {"max_active": 50, "per_hour": 500, "burst": 10, "emergency_max_active": 5}
        assert changes_recorded() == [("quota.set", {}, after)]
        assert quota.newest.set_by == str(OPERATOR)
        event = OperatorEvent.objects.get()
        assert (event.target, event.reason, event.actor) == (f"organization:{ORG}", "test", str(OPERATOR))

    def test_a_field_that_is_missing_stays_and_none_removes(self, project):
        change(max_active=50, per_hour=500, burst=10)
        change(max_active=None)
        assert terms() == {"rate": (None, 500, 10)}
        change(burst=3)
        assert terms() == {"rate": (None, 500, 3)}
        change(per_hour=60)
        assert terms() == {"rate": (None, 60, 3)}
        change(per_hour=None)
        assert terms() == {}
        assert [after for _, _, after in changes_recorded()][-1] == {}

    def test_a_type_has_a_quota_of_its_own(self, project):
        change(max_active=50)
        change(job_type="runtime", max_active=4, per_hour=100)
        assert terms() == {"organization": (50, None, None)}
        assert terms("runtime") == {"organization": (4, None, None), "rate": (None, 100, 1)}
        assert read_quota(ORG, "steps").version == UNSET

    @pytest.mark.parametrize(
        "changes",
        [{"burst": 3}, {"per_hour": None, "burst": 3}, {"per_hour": 60, "burst": None}],
    )
    def test_a_burst_and_a_rate_belong_together(self, project, changes):
        with pytest.raises(Invalid, match="not valid") as refusal:
            change(max_active=1, **changes)
        assert list(refusal.value.errors) == ["burst"]
        assert (terms(), changes_recorded()) == ({}, [])

    def test_only_all_types_together_have_an_emergency_limit(self, project):
        with pytest.raises(Invalid):
            change(OPERATOR, job_type="runtime", emergency_max_active=3)
        assert change(OPERATOR, job_type="runtime", emergency_max_active=None).version == UNSET

    def test_nothing_to_remove_is_no_change(self, project):
        assert change(max_active=None, per_hour=None).version == UNSET
        assert changes_recorded() == []


@pytest.mark.django_db
class TestPermission:
    def test_a_client_sets_no_emergency_limit_and_nothing_else_with_it(self, project):
        with pytest.raises(OperatorOnly):
            change(max_active=3, emergency_max_active=5)
        assert (terms(), changes_recorded()) == ({}, [])

    def test_a_client_changes_no_limit_of_an_operator_and_nothing_else_with_it(self, project):
        change(OPERATOR, per_hour=60)
        with pytest.raises(OperatorOnly):
            change(max_active=3, per_hour=600)
        assert terms() == {"rate": (None, 60, 1)}
        change(max_active=3)
        assert terms()["organization"] == (3, None, None), "a limit that the operator has not set"


@pytest.mark.django_db
class TestVersions:
    def test_each_change_gives_another_version(self, project):
        seen = {UNSET}
        for changes in ({"max_active": 1}, {"per_hour": 5}, {"max_active": 1}, {"max_active": None}, {"max_active": 1}):
            seen.add(change(**changes).version)
        assert len(seen) == 6, "also a limit that was removed and set again"
        limited(ORG, max_active=9, cause=Cause(ALICE, "by its own API"))
        assert read_quota(ORG, "*").version not in seen

    def test_an_older_version_is_refused_with_the_current_one(self, project):
        old = change(max_active=1).version
        current = change(max_active=2).version
        with pytest.raises(VersionConflict) as refusal:
            change(max_active=3, if_versions={old})
        assert refusal.value.facts == {"version": current}
        assert terms() == {"organization": (2, None, None)}
        change(max_active=3, if_versions={current})
        assert terms() == {"organization": (3, None, None)}


@pytest.mark.django_db(transaction=True)
class TestRaces:
    def test_one_of_many_changes_of_one_version_wins(self):
        ProjectFactory(organization=OrganizationFactory(slug=ORG))
        version = change(max_active=100, per_hour=100).version
        answers = together(
            *(
                lambda number=number: change(max_active=number, per_hour=number, if_versions={version})
                for number in range(1, 9)
            )
        )
        assert refused(answers) == ["version_conflict"] * 7
        (winner,) = (answer for answer in answers if not isinstance(answer, VersionConflict))
        assert winner.concurrency.max_active == winner.rate.per_hour
        assert OperatorEvent.objects.filter(action="quota.set").count() == 2

    def test_a_version_counts_after_the_lock(self):
        """A change that waits for another one reads the version that the other one leaves."""
        OrganizationFactory(slug=ORG)
        version = change(max_active=1).version
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(4, hashtext(%s))", [ORG])
        try:
            waiting = _waiting_change(max_active=2, if_versions={version})
            Limit.objects.filter(org_slug=ORG).update(version=7)
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(4, hashtext(%s))", [ORG])
        assert refused(waiting()) == ["version_conflict"]

    def test_all_limits_change_under_claims_and_are_never_exceeded(self):
        project = ProjectFactory(organization=OrganizationFactory(slug=ORG))
        for _ in range(40):
            submitted(project)
        workers = [WorkerFactory(capacity=50) for _ in range(6)]
        change(OPERATOR, max_active=2)

        def work(worker) -> None:
            for _ in range(60):
                claim = claiming.claim(worker=worker, offer=offer(worker))
                assert Job.objects.filter(state__in=LEASED_STATES).count() <= 4
                if claim is not None:
                    job_end.complete(lease_ulid=claim.lease.lease_ulid, worker=worker, ingest_run_id=_run_of(claim))

        def govern() -> None:
            for number in (1, 2, 3, 4):
                change(OPERATOR, max_active=number, per_hour=100_000, burst=1000, emergency_max_active=number)
                change(OPERATOR, per_hour=None, emergency_max_active=None)

        answers = together(*(lambda worker=worker: work(worker) for worker in workers), govern)
        assert refused(answers) == []
        assert terms() == {"organization": (4, None, None)}
        limit = Limit.objects.get(kind=LimitKind.ORGANIZATION)
        assert LimitSlot.objects.filter(limit_id=limit.pk, retired=False).count() == 4
        assert run_audit() == []


def _run_of(claim) -> str:
    return f"run_{claim.job.job_ulid[4:]}"


def _waiting_change(**arguments):
    """Begin a change in a thread, return when it waits for the advisory lock; the result is a function to await it."""
    import threading  # noqa: PLC0415 - beside its only use

    answers: list = []

    def act() -> None:
        answers.extend(together(lambda: change(**arguments)))

    thread = threading.Thread(target=act)
    thread.start()
    while True:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            if cursor.fetchone()[0]:
                break

    def wait() -> list:
        thread.join(60)
        return answers

    return wait
