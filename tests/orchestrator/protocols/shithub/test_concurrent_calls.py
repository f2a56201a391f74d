"""Calls at the same time: a token counts once, capacity is exact, a job goes to one runner, one end wins."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from django.db import connection

from leases.models import Lease, LimitKind
from leases.scheduling.limits import LimitTarget
from orchestrator.audit.runner import run_audit
from orchestrator.core.cause import Cause
from orchestrator.job_tokens.models import UsedToken
from orchestrator.services import actions_runners
from runtime_jobs.models import Job
from runtime_jobs.states import JobState
from tests.factories import OPERATOR, limited
from tests.orchestrator.protocols.shithub.runner import RunnerClient
from tests.orchestrator.protocols.shithub.windows import forget_heartbeats
from tests.orchestrator.protocols.shithub.world import actions_spec, make_repository, register, start_run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture(autouse=True)
def audited() -> Iterator[None]:
    """The audit of the database finds nothing after each race."""
    yield
    assert run_audit(chains=True) == []


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Call all functions at the same time, each in a thread with a connection of its own."""
    barrier = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(number: int, act: Callable[[], Any]) -> None:
        try:
            barrier.wait(60)
            results[number] = act()
        except BaseException as error:  # noqa: BLE001 raised below
            results[number] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def statuses(responses: Sequence[Any]) -> Counter[int]:
    return Counter(response.status_code for response in responses)


def client_like(client: RunnerClient) -> RunnerClient:
    """The same runner over a connection of its own: test clients are not made for threads."""
    return RunnerClient(client.registration)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("status", {"status": "running"}),
        ("cancel-check", {}),
        ("logs", {"seq": 0, "chunk": "aGVsbG8K"}),
        ("status", {"status": "completed", "conclusion": "success"}),
    ],
    ids=["running", "cancel-check", "logs", "end"],
)
def test_of_eight_calls_with_one_token_one_has_an_effect(path, body):
    runner = register()
    start_run()
    claimed = runner.client.claim()

    def call() -> Any:
        return client_like(runner.client).post(f"{claimed.path}/{path}", body, token=claimed.token)

    found = statuses(at_once(*[call] * 8))
    assert found[401] == 7
    assert sum(found.values()) - found[401] == 1
    assert UsedToken.objects.count() == 1


def test_64_heartbeats_at_once_with_capacity_3_claim_3_jobs():
    """The 61st of a minute is 429, whatever order they come in."""
    runner = register(capacity=3)
    repository = make_repository()
    for _ in range(5):
        start_run(repository, [actions_spec(job_key=f"j{n}") for n in range(2)])
    found = statuses(at_once(*[lambda: client_like(runner.client).heartbeat(capacity=3)] * 64))
    assert found[200] == 3
    assert found[204] + found[429] == 61
    assert found[429] <= 4, "4 in one minute; fewer where the machine needs longer"
    assert Lease.objects.open().count() == 3
    forget_heartbeats(runner)
    assert runner.client.heartbeat(capacity=3).status_code == 204


def test_runners_of_one_project_share_its_limit():
    """16 heartbeats of four runners, with room for 40 jobs, and a limit of 3."""
    repository = make_repository()
    start_run(repository, [actions_spec(job_key=f"j{n}") for n in range(12)])
    project = repository.project
    limited(
        LimitTarget.of_project(project.organization.slug, project.slug),
        kind=LimitKind.PROJECT,
        max_active=3,
        cause=Cause(OPERATOR, "cap"),
    )
    runners = [register(f"runner-{n}", capacity=10) for n in range(4)]
    acts = [lambda one=one: client_like(one.client).heartbeat(capacity=10) for one in runners for _ in range(4)]
    assert statuses(at_once(*acts)) == {200: 3, 204: 13}
    assert Lease.objects.open().count() == 3


def test_two_runners_claim_200_jobs_each_once():
    repository = make_repository()
    for _ in range(4):
        start_run(repository, [actions_spec(job_key=f"j{n}") for n in range(50)])
    runners = [register(f"runner-{n}") for n in range(2)]

    def work(client: RunnerClient, row: Any) -> list[int]:
        done: list[int] = []
        while True:
            forget_heartbeats(row)
            response = client.heartbeat()
            if response.status_code == 204:
                return done
            assert response.status_code == 200, response.content
            from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient  # noqa: PLC0415

            claimed = ClaimedJobClient(client, response.json())
            assert claimed.end().status_code == 200
            done.append(claimed.job["id"])

    found = at_once(*(lambda one=one: work(client_like(one.client), one) for one in runners))
    ended = [job for done in found for job in done]
    assert (len(ended), len(set(ended))) == (200, 200)
    assert set(Job.objects.values_list("state", flat=True)) == {JobState.SUCCEEDED}


def test_two_different_ends_at_once_one_wins_and_completes_the_run():
    runner = register()
    started = start_run()
    claimed = runner.client.claim()
    claimed.run()
    from tests.orchestrator.protocols.shithub.test_job_calls import spare  # noqa: PLC0415

    first, second = spare(claimed)[:2]

    def end(token: str, conclusion: str) -> Any:
        body = {"status": "completed", "conclusion": conclusion}
        return client_like(runner.client).post(f"{claimed.path}/status", body, token=token)

    responses = at_once(lambda: end(first, "success"), lambda: end(second, "failure"))
    assert statuses(responses) == {200: 1, 400: 1}
    started.job.refresh_from_db()
    assert started.job.state in {JobState.SUCCEEDED, JobState.FAILED}


def test_the_last_two_jobs_of_a_run_end_at_once_and_one_report_completes_the_run():
    runner = register(capacity=2)
    start_run(specs=[actions_spec(job_key="a"), actions_spec(job_key="b")])
    claims = [runner.client.claim(capacity=2) for _ in range(2)]
    for claimed in claims:
        claimed.run()
        claimed.runner = client_like(runner.client)
    responses = at_once(*(claimed.end for claimed in claims))
    assert statuses(responses) == {200: 2}
    assert sum("run_status" in response.json() for response in responses) == 1


def test_a_report_and_a_revocation_at_once_leave_one_end():
    for _ in range(5):
        name = f"runner-{_}"
        runner = register(name)
        started = start_run()
        claimed = runner.client.claim()
        claimed.run()
        claimed.runner = client_like(runner.client)
        response, _ended = at_once(
            claimed.end, lambda name=name: actions_runners.revoke_runner(name=name, cause=Cause(OPERATOR, "race"))
        )
        started.job.refresh_from_db()
        assert started.job.is_final
        assert (response.status_code == 200) == (started.job.state == JobState.SUCCEEDED)
        assert {step.is_ended for step in started.job.steps.all()} == {True}
