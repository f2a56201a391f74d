"""The claim of document 002 through this API: strict order, FIFO, one free job, one unclaimed job of an address."""

import pytest

from leases.scheduling.claims import Offer
from orchestrator.audit.runner import run_audit
from orchestrator.services import claiming, job_end
from runtime_jobs.models import Job
from runtime_jobs.states import FailureReason
from tests.api_client import Caller
from tests.factories import RunnerFactory
from tests.orchestrator.protocols.bencher.runs.world import (
    DIGEST,
    job_body,
    job_of,
    new_person,
    new_project,
    new_spec,
)
from tests.orchestrator.services.test_races import together

pytestmark = pytest.mark.django_db


@pytest.fixture
def runners(spec, settings):
    """Three runners that provide the spec."""
    settings.ANONYMOUS_RUNS_PER_MINUTE = 0
    return [RunnerFactory() for _ in range(3)]


@pytest.fixture
def submit(runners):
    """Submit a run of a tier, each organization by a person of its own."""
    people: dict[str, Caller] = {}

    def send(name: str, tier: str, address: str = "127.0.0.1") -> Job:
        if tier == "unclaimed":
            return job_of(Caller(), job_body(f"{name}@{DIGEST}", spec="two-cores"), **forwarded(address))
        if name not in people:
            people[name] = new_person(f"of-{name}", new_project(name, tier).organization).caller
        return job_of(people[name], job_body(f"{name}@{DIGEST}", spec="two-cores"), **forwarded(address))

    return send


def forwarded(address: str) -> dict[str, str]:
    return {"X-Forwarded-For": address}


@pytest.fixture(autouse=True)
def proxy(settings):
    settings.BEHIND_PROXY = True


def take(runner, label=None):
    label = label or Job.objects.first().requirements[0]
    offer = Offer(runner.worker_id, runner.pool.slug, ("oci",), frozenset({label}), "microvm")
    return claiming.claim(worker=runner, offer=offer, acknowledge=True)


def taken(runners) -> list[str]:
    """All that any of the runners can have now, in order."""
    found, place = [], 0
    while (claim := take(runners[place % len(runners)])) is not None:
        found.append(claim.job.job_ulid)
        place += 1
    assert all(take(runner) is None for runner in runners)
    return found


def end(job) -> None:
    lease = Job.objects.get(pk=job.pk).leases.get(completed_at=None)
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason=FailureReason.WORKER_ERROR)


def ids(*jobs) -> list[str]:
    return [job.job_ulid for job in jobs]


def test_the_order_is_strict_by_tier_and_by_age_within_one(submit, runners):
    unclaimed, free = submit("a", "unclaimed"), submit("b", "free")
    team, rich = submit("c", "team"), submit("d", "enterprise")
    second_team, second_rich = submit("e", "team"), submit("d", "enterprise")
    assert taken(runners) == ids(rich, second_rich, team, second_team, free)
    end(rich), end(second_rich), end(team), end(second_team), end(free)
    assert taken(runners) == ids(unclaimed)


def test_one_free_job_of_an_organization_over_all_runners(submit, runners):
    first, second, other = submit("a", "free"), submit("a", "free"), submit("b", "free")
    assert taken(runners) == ids(first, other)
    end(first)
    assert taken(runners) == ids(second)


def test_one_unclaimed_job_of_an_address_over_all_organizations(submit, runners):
    first, same = submit("a", "unclaimed", "192.0.2.1"), submit("b", "unclaimed", "192.0.2.1")
    elsewhere = submit("c", "unclaimed", "192.0.2.2")
    assert taken(runners) == ids(first, elsewhere)
    end(first)
    assert taken(runners) == ids(same)


def test_a_paid_job_of_the_address_counts(submit, runners):
    team = submit("t", "team", "192.0.2.1")
    waits = submit("a", "unclaimed", "192.0.2.1")
    assert taken(runners) == ids(team)
    end(team)
    assert taken(runners) == ids(waits)


def test_paid_jobs_are_never_held(submit, runners):
    jobs = [submit("t", "team") for _ in range(4)]
    assert taken(runners) == ids(*jobs)


def test_without_the_label_of_the_spec_there_is_no_job(submit, runners):
    submit("t", "team")
    assert take(runners[0], label="spec:00000000-0000-0000-0000-000000000099") is None


def test_the_claim_of_an_organization_lifts_what_waits_at_once(submit, runners):
    running, waits = submit("a", "unclaimed", "192.0.2.1"), submit("a", "unclaimed", "192.0.2.1")
    other = submit("b", "unclaimed", "192.0.2.2")
    assert taken(runners) == ids(running, other)
    person = new_person("mia")
    assert person.caller.post("/v0/organizations/a/claim").status_code == 201
    waits.refresh_from_db()
    running.refresh_from_db()
    assert (waits.priority, running.priority) == (100, 0)
    assert taken(runners) == [], "the running job is the one of the organization"
    end(running)
    assert taken(runners) == ids(waits)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("tier", ["free", "unclaimed"])
def test_runners_that_claim_at_the_same_time_respect_both(tier, settings):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 0
    new_spec()
    runners = [RunnerFactory() for _ in range(5)]
    mia = new_person("mia", new_project("web", "free").organization).caller
    for number in range(4):
        if tier == "free":
            job_of(mia, job_body(f"web@{DIGEST}", spec="two-cores"), **forwarded("192.0.2.1"))
        else:
            job_of(Caller(), job_body(f"org-{number}@{DIGEST}", spec="two-cores"), **forwarded("192.0.2.1"))
    for _ in range(4):
        claims = [found for found in together(*[lambda one=one: take(one) for one in runners]) if found]
        assert len(claims) <= 1
        end(Job.objects.get(state="leased"))
    assert not Job.objects.filter(state="queued").exists()
    assert run_audit() == []
