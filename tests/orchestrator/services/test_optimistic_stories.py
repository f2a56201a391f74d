"""Random stories leave the same rows, events and hashes whether messages are optimistic or in a transaction."""

import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leases.models import Lease
from leases.scheduling import claims
from orchestrator.core import unit_of_work
from orchestrator.core.unit_of_work import NeedsTransaction, UnitOfWork
from orchestrator.services import batch_calls, cancellation, claiming, expiry, heartbeat, job_end, late_results
from orchestrator.services.heartbeat import HeartbeatUpdate
from orchestrator.services.job_end import ArtifactRef, CompleteMessage, FailMessage
from runtime_jobs import identifiers
from runtime_jobs.errors import LifecycleError
from runtime_jobs.models import Artifact, FailureExplanation, Job, JobEvent
from runtime_jobs.states import FailureReason
from tests.factories import ALICE, LATE_POLICY, ProjectFactory, WorkerFactory, offer, submitted_steps

pytestmark = pytest.mark.django_db

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
NUMBERED = {"id", "lane_id", "xid"}  # sequences and transactions are never rolled back
PHASES = ("checking_out", "executing", "uploading")
LOG = (ArtifactRef("log", "https://x/log"),)

OPERATIONS = (
    *("submit", "claim", "acknowledge", "renew", "report", "complete", "fail", "release", "cancel", "expire"),
    *("acknowledge_cancel", "acknowledge_many", "renew_many", "complete_many", "fail_many", "stop_by_worker"),
    *("complete_late", "settle", "give_up"),
)
STEPS = st.tuples(
    st.sampled_from(OPERATIONS),
    st.integers(0, 2),  # which lease or job
    st.sampled_from([0.0, 0.4, 5.0, 25.0, 130.0]),  # seconds since the step before
    st.integers(0, 5),  # what the message contains
)


class Ids:
    """Gives each attempt of a step the same identifiers, so that the hashes of two runs can be compared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step = self.number = 0
        monkeypatch.setattr(identifiers, "new_ids", self.new)
        monkeypatch.setattr(claims, "new_ids", self.new)
        original = UnitOfWork.__init__

        def begin(uow: UnitOfWork, *args: Any, **kwargs: Any) -> None:
            self.number = 0
            original(uow, *args, **kwargs)

        monkeypatch.setattr(UnitOfWork, "__init__", begin)

    def new(self, prefix: str, count: int) -> list[str]:
        return [self._one(prefix) for _ in range(count)]

    def _one(self, prefix: str) -> str:
        self.number += 1
        digest = hashlib.sha256(f"{prefix} {self.step} {self.number}".encode()).hexdigest()
        return f"{prefix}_0{digest[:25]}"


def act(name: str, place: int, content: int, now: datetime, project: Any, worker: Any) -> Any:
    if name == "submit":
        return submitted_steps(project, policy=LATE_POLICY if content > 2 else None, now=now)
    if name == "claim":
        return claiming.claim(
            worker=worker, offer=offer(worker, job_types=("steps",)), acknowledge=content > 1, now=now
        )
    job = Job.objects.order_by("-id")[place : place + 1].first()
    lease = Lease.objects.order_by("-id")[place : place + 1].first()
    if name == "cancel":
        return job and cancellation.cancel(job_ulid=job.job_ulid, actor=ALICE, deadline_seconds=30, now=now)
    if name in {"expire", "settle", "give_up"}:
        return job and function_of(name)(job_ulid=job.job_ulid, now=now)
    if name == "complete_late":
        return job and late_results.complete_late(job_ulid=job.job_ulid, worker=worker, exit_code=content % 2, now=now)
    return lease and message(name, lease, content, now, worker)


def function_of(name: str) -> Callable[..., Any]:
    """Return the operation of this name."""
    modules = (batch_calls, cancellation, expiry, heartbeat, job_end, late_results)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def message(name: str, lease: Lease, content: int, now: datetime, worker: Any) -> Any:
    reason = list(FailureReason)[content]
    update = HeartbeatUpdate(
        PHASES[content] if content < 3 else None, None, {"percent": content} if content == 4 else None
    )
    given: dict[str, dict[str, Any]] = {
        "renew": vars(update),
        "report": {"phase": PHASES[content % 3]},
        "complete": {
            "exit_code": content % 2,
            "result": {"steps": [content]},
            "artifacts": LOG if content == 5 else (),
        },
        "fail": {"reason": reason, "message": "é" * content, "artifacts": LOG if content == 5 else ()},
        "release": {"unable": content % 2 == 1},
    }
    if not name.endswith("_many"):
        return function_of(name)(lease_ulid=lease.lease_ulid, worker=worker, now=now, **given.get(name, {}))
    names = [*Lease.objects.order_by("-id").values_list("lease_ulid", flat=True)[: 1 + content], "rtl_none"][
        : 1 + content
    ]
    contents = {
        "acknowledge_many": None,
        "renew_many": update,
        "complete_many": CompleteMessage(exit_code=content % 2),
        "fail_many": FailMessage(reason),
    }
    return function_of(name)(batch_calls.messages_of(worker, dict.fromkeys(names, contents[name])), now=now)


def outcome(result: Any) -> Any:
    if isinstance(result, dict):
        return {key: outcome(value) for key, value in result.items()}
    if isinstance(result, LifecycleError):
        return type(result).__name__, result.code, result.message, result.facts
    found = getattr(result, "job", result)
    return found and (found.job_ulid, str(found.state), found.updated_at, found.event_head)


def tell(story: list[Any], ids: Ids, project: Any, worker: Any) -> list[Any]:
    """Return the outcome of each step, and all rows at the end. Nothing remains in the database."""
    response_body: list[Any] = []
    now = BEGIN
    begin = transaction.savepoint()
    for ids.step, (name, place, seconds, content) in enumerate(story):
        now += timedelta(seconds=seconds)
        ids.number = 0
        try:
            response_body.append((name, outcome(act(name, place, content, now, project, worker))))
        except LifecycleError as refusal:
            response_body.append((name, outcome(refusal)))
    for model in (Job, Lease, JobEvent, Artifact, FailureExplanation):
        rows = model.objects.order_by("id").values()
        response_body.append((model.__name__, [{name: row[name] for name in row.keys() - NUMBERED} for row in rows]))
    transaction.savepoint_rollback(begin)
    return response_body


@settings(
    max_examples=int(os.environ.get("PROOF_EXAMPLES", "12")), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(story=st.lists(STEPS, min_size=8, max_size=20))
def test_both_forms_leave_the_same(story):
    project, worker = ProjectFactory(), WorkerFactory(capacity=50)
    story = [("submit", 0, 0.0, 0), ("submit", 0, 0.0, 0), ("claim", 0, 0.0, 0), *story]
    with pytest.MonkeyPatch.context() as patched:
        ids = Ids(patched)
        optimistic = tell(story, ids, project, worker)

        def transact(*_: Any, **__: Any) -> Any:
            raise NeedsTransaction

        patched.setattr(unit_of_work, "_attempt_optimistically", transact)
        assert tell(story, ids, project, worker) == optimistic
