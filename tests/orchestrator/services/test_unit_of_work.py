"""The writes of an operation: keys are matched by name, a refusal leaves nothing, a taken run fails its own entry."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone

from leases.fencing import LockedLease, RowVersions
from leases.models import Lane, LaneHead, Lease
from orchestrator.core import unit_of_work
from orchestrator.core.unit_of_work import NeedsTransaction, UnitOfWork, operation
from orchestrator.services import batch_calls, bulk_submit
from orchestrator.services import submission as services_submission
from orchestrator.services.admission import load_context
from orchestrator.services.dependencies import EMPTY_SNAPSHOT
from orchestrator.services.job_end import ArtifactRef, CompleteMessage, runs_in_use
from runtime_jobs.errors import Conflict
from runtime_jobs.models import Artifact, Job, JobEvent
from tests.api_client import Caller
from tests.factories import (
    ALICE,
    POLICY,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    claimed,
    spec,
    submission,
    submitted,
)

LEASES = "/v1/runtime/leases"


@pytest.mark.django_db
def test_new_rows_get_their_own_keys_in_whatever_order_the_database_numbers_them():
    """Keys that fall within one INSERT: sorted keys paired with rows put each job into the lane of another one."""
    project = ProjectFactory()
    other = ProjectFactory(organization=project.organization, slug="other")
    with connection.cursor() as cursor:
        cursor.execute("ALTER SEQUENCE runtime_jobs_id_seq INCREMENT BY -1 RESTART WITH 1000 MAXVALUE 1000 MINVALUE 1")
    made = bulk_submit.submit_many(
        [submission(one, spec()) for one in (project, other, project, other)],
        policy_for=lambda _: POLICY,
        default_pool="shared-linux",
        actor=ALICE,
    ).results
    assert [job.pk for job in made] == [1000, 999, 998, 997]
    for job in made:
        stored = Job.objects.get(job_ulid=job.job_ulid)
        assert (stored.pk, stored.project_slug) == (job.pk, job.project_slug)
        assert Lane.objects.get(pk=stored.lane_id).project_slug == job.project_slug
    worker = WorkerFactory()
    projects = dict(Lane.objects.values_list("pk", "project_slug"))
    heads = {projects[lane]: head for lane, head in LaneHead.objects.values_list("lane_id", "head_id")}
    of_project = {slug: {job.pk for job in made if job.project_slug == slug} for slug in heads}
    assert all(head in of_project[slug] for slug, head in heads.items())
    assert claimed(worker).job.project_slug in heads


@pytest.mark.django_db
def test_an_entry_that_is_refused_leaves_no_artifact(settings):
    """Two entries name one run: the second is refused, with everything that it brought."""
    worker, leases = WorkerFactory(), []
    for _ in range(2):
        submitted(ProjectFactory(slug="web", organization=OrganizationFactory(slug="sandtrace")))
        leases.append(claimed(worker).lease)
    words = {
        lease.lease_ulid: CompleteMessage("run_1", artifacts=(ArtifactRef("log", f"https://x/{lease.pk}"),))
        for lease in leases
    }
    answers = batch_calls.complete_many(batch_calls.messages_of(worker, words))
    kept, refused = (answers[lease.lease_ulid] for lease in leases)
    assert isinstance(refused, Conflict)
    assert list(Artifact.objects.values_list("job_id", flat=True)) == [kept.job.job_ulid]
    assert Job.objects.get(job_ulid=leases[1].job_id).state == "starting"


@pytest.mark.django_db
def test_a_refusal_after_an_immediate_write_undoes_the_whole_call(monkeypatch):
    """The guard of the discipline: half of an entry is never left behind."""
    submitted()
    lease = claimed().lease

    def writes_and_refuses(_, locked, *__):
        Job.objects.filter(pk=locked.job.pk).update(log_bytes=7)
        raise Conflict("no")

    monkeypatch.setattr(batch_calls, "apply_success", writes_and_refuses)
    with pytest.raises(RuntimeError, match="Refused after it was written: UPDATE"):
        batch_calls.complete_many(batch_calls.messages_of(lease.worker, {lease.lease_ulid: CompleteMessage("run_1")}))


@pytest.mark.django_db
def test_a_savepoint_undoes_what_was_decided_and_what_was_written():
    @operation
    def attempt(uow: UnitOfWork):
        now = Job.objects.get(pk=first.pk).created_at
        context = load_context(uow, [given.project_key], default_pool="shared-linux")
        with pytest.raises(Conflict), uow.savepoint():  # noqa: PT012 the block is what is undone
            job = services_submission.new_job(given, POLICY)
            status = services_submission.admit_job(job, given, context, EMPTY_SNAPSHOT)
            services_submission.enqueue_job(uow, job, given, status, now=now, actor=ALICE)
            raise Conflict("late")
        assert uow.lane_ids == {}

    project = ProjectFactory()
    first = submitted(project)
    given = submission(ProjectFactory(organization=project.organization, slug="new"), spec())
    attempt()
    assert Job.objects.count() == 1
    assert JobEvent.objects.count() == 1
    assert not Lane.objects.filter(project_slug="new").exists()


def test_an_entry_that_is_undecided_leaves_nothing_of_what_it_collected():
    """In each collection, whether it was empty before or not."""

    def collect(uow: UnitOfWork, name: str) -> None:
        row = Job(job_ulid=name, state="leased")
        uow.change(row), uow.add(Job(job_ulid=f"new {name}")), uow.relocate(row)
        for collection in (uow.events, uow.extra_rows, uow.artifacts, uow.unsent_runs, uow.diagnoses):
            collection.append(name)
        uow.idempotency_keys.append(name)
        uow.lane_ids[name] = 1
        for collection in (uow.lane_updates.entered, uow.lane_updates.freed, uow.lane_updates.kept):
            collection.append(name)
        uow.lane_updates.arrived("acme"), uow.lane_updates.arrived(name)
        uow.after_commit(str, name), uow.after_commit(repr if name == "undone" else str, name)

    for names in ((), ("kept",)):
        uow = UnitOfWork(versions=RowVersions())
        for name in names:
            collect(uow, name)
        before = repr([vars(uow), vars(uow.lane_updates)])
        locked = LockedLease(Job(job_ulid="j", state="leased"), Lease(lease_ulid="l"), timezone.now())
        with pytest.raises(NeedsTransaction), uow.undo_if_undecided(locked):  # noqa: PT012 the block is what is undone
            collect(uow, "undone")
            locked.job.state = locked.lease.state = "ended"
            uow.next_claim = SimpleNamespace()
            raise Conflict("late")
        assert repr([vars(uow), vars(uow.lane_updates)]) == before
        assert "ended" not in {locked.job.state, locked.lease.state}


@pytest.mark.django_db
def test_what_follows_the_commit_is_called_once_with_all_items_that_were_kept():
    """A refused part registers nothing, and an operation that fails calls nothing."""
    called: list[tuple[list[str], int]] = []

    def follow(items: list[str]) -> None:
        called.append((items, Job.objects.count()))

    @operation
    def submit_two(uow: UnitOfWork, *, fails: bool = False) -> None:
        uow.after_commit(follow, "first")
        with pytest.raises(Conflict), uow.savepoint():  # noqa: PT012 the block is what is undone
            uow.after_commit(follow, "refused")
            raise Conflict("no")
        uow.add(Job.objects.get(pk=job.pk)) if fails else None
        uow.after_commit(follow, "second")

    job = submitted()
    submit_two()
    assert called == [(["first", "second"], 1)]
    with pytest.raises(IntegrityError):
        submit_two(fails=True)
    assert len(called) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_optimistic", [True, False])
def test_a_run_that_is_taken_meanwhile_fails_its_own_entry(monkeypatch, settings, is_optimistic):
    """With an external ingest the server cannot know to which job a run belongs: two calls name one run."""
    settings.INGEST_URL = "https://ingest.example"
    project = ProjectFactory(organization=OrganizationFactory(slug="sandtrace"))
    worker = WorkerFactory()
    leases = []
    for _ in range(4):
        submitted(project)
        leases.append(claimed(worker).lease.lease_ulid)
    both_looked, looked = threading.Barrier(2), threading.local()

    def look(uow, words):
        found = runs_in_use(uow, words)
        if not hasattr(looked, "once"):
            looked.once = True
            both_looked.wait(60)
        return found

    def transact(*_, **__):
        raise NeedsTransaction

    monkeypatch.setattr(batch_calls, "runs_in_use", look)
    if not is_optimistic:
        monkeypatch.setattr(unit_of_work, "_attempt_optimistically", transact)

    def complete(own, place):
        runs = {own[0]: "run_shared", own[1]: f"run_{place}"}
        results = [{"lease_id": name, "result": {"status": "uploaded", "ingest_run_id": runs[name]}} for name in own]
        try:
            return Caller(worker.token).post(f"{LEASES}/complete", {"leases": results})
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(complete, (leases[:2], leases[2:]), (0, 1)))
    assert [answer.status_code for answer in answers] == [200, 200], [answer.content for answer in answers]
    results = [answer.json()["results"] for answer in answers]
    assert sorted(first["status"] for first, _ in results) == [200, 409]
    assert {second["status"] for _, second in results} == {200}
    refused = next(first for first, _ in results if first["status"] == 409)
    assert refused["error"]["code"] == "conflict"
    assert Job.objects.filter(state="succeeded").count() == 3
