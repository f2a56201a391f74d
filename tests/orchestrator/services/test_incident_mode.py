"""An organization in incident mode: retention deletes nothing of it until the end."""

from datetime import timedelta

import pytest

from orchestrator.core.cause import Cause
from orchestrator.incidents import incident_mode
from orchestrator.incidents.models import Incident, IncidentMode
from orchestrator.incidents.operations import resolve_incident
from orchestrator.maintenance.pruning import count_old_rows, delete_everything
from orchestrator.maintenance.queues import sweep_scheduling
from orchestrator.services import job_end
from orchestrator.step_logs import job_log_writes
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import Invalid, NotFound
from runtime_jobs.models import Job, LogChunk, OperatorEvent
from runtime_jobs.states import FailureReason
from tests.factories import ALICE, OPERATOR, OrganizationFactory, ProjectFactory, WorkerFactory, claimed, submitted

pytestmark = pytest.mark.django_db

ORG = "sandtrace"
HOUR, YEARS = timedelta(hours=1), timedelta(days=800)


def begin(**changes) -> IncidentMode:
    values = {"org_slug": ORG, "until": database_now() + HOUR, "cause": Cause(OPERATOR, "investigation")}
    return incident_mode.begin_incident_mode(**values | changes)


def end(actor=OPERATOR) -> None:
    incident_mode.end_incident_mode(org_slug=ORG, cause=Cause(actor, "done"))


def actions() -> list[str]:
    found = OperatorEvent.objects.filter(action__startswith="incident_mode.").order_by("id")
    assert {event.org_slug for event in found} <= {ORG}
    return [event.action for event in found]


class TestMode:
    def test_it_begins_changes_and_ends(self):
        first = begin()
        later = begin(until=first.until + HOUR, cause=Cause(ALICE, "it takes longer"))
        assert (later.until - first.until, later.reason) == (HOUR, "it takes longer")
        assert (later.begun_at, later.begun_by) == (first.begun_at, str(OPERATOR)), "it is the same one"
        end()
        assert not IncidentMode.objects.exists()
        with pytest.raises(NotFound):
            end()
        assert actions() == ["incident_mode.begun", "incident_mode.begun", "incident_mode.ended"]

    @pytest.mark.parametrize("until", [-HOUR, timedelta(), timedelta(days=31, seconds=60)])
    def test_it_has_an_end_and_that_is_near(self, until):
        with pytest.raises(Invalid):
            begin(until=database_now() + until)
        assert not IncidentMode.objects.exists()

    def test_it_ends_by_itself(self):
        mode = begin()
        sweep_scheduling(now=mode.until - timedelta(seconds=1))
        assert actions() == ["incident_mode.begun"]
        sweep_scheduling(now=mode.until)
        assert actions() == ["incident_mode.begun", "incident_mode.ended"]
        assert OperatorEvent.objects.latest("id").actor == "clock:clock"

    def test_one_that_has_expired_is_no_mode(self):
        begin()
        IncidentMode.objects.update(until=database_now())
        with pytest.raises(NotFound):
            end()
        assert begin(cause=Cause(ALICE, "investigation")).begun_by == str(ALICE), "another one"


class TestRetention:
    @pytest.fixture(autouse=True)
    def old(self, settings):
        """A failed job of each of two organizations, with a log and a resolved incident, two years ago."""
        settings.RETENTION_DAYS = settings.RETENTION_DAYS | {"operator_events": 30}
        for slug in (ORG, "other"):
            submitted(ProjectFactory(organization=OrganizationFactory(slug=slug)))
            taken = claimed(worker := WorkerFactory())
            lease = {"lease_ulid": taken.lease.lease_ulid, "worker": worker}
            job_log_writes.append_log(**lease, seq=0, chunk=b"hello\n")
            job_end.fail(**lease, reason=FailureReason.WORKER_ERROR)
            incident = Incident.objects.latest("pk")
            resolve_incident(incident_ulid=incident.incident_ulid, cause=Cause(OPERATOR))

    def remaining(self) -> tuple[set[str], ...]:
        by_organization = (Job, Incident, OperatorEvent)
        kept = tuple(set(model.objects.values_list("org_slug", flat=True)) for model in by_organization)
        return (*kept, set(LogChunk.objects.values_list("job__org_slug", flat=True)))

    def test_nothing_of_it_is_deleted(self):
        later = database_now() + YEARS
        begin()
        expected = count_old_rows(now=later)
        deleted = delete_everything(now=later)
        assert self.remaining() == ({ORG}, {ORG}, {ORG}, {ORG})
        assert {table: number for table, number in expected.items() if number} == {
            table: number for table, number in deleted.items() if number
        }

    def test_after_its_end_all_is_deleted_as_ever(self):
        begin()
        IncidentMode.objects.update(until=database_now())
        delete_everything(now=database_now() + YEARS)
        assert self.remaining() == (set(), set(), set(), set())
