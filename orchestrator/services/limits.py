"""What holds jobs back: an operator's word, kept in the trail of operators."""

from datetime import datetime
from typing import Any

from leases.advisory_locks import QUEUES_OF_ORGANIZATION, advisory_xact_lock
from leases.models import Limit, LimitKind
from leases.scheduling.fair_share import disable_fair_share, enable_fair_share
from leases.scheduling.limits import ALL_TYPES, LimitTarget, remove_limit
from leases.scheduling.limits import set_limit as put
from leases.scheduling.plan_limits import sync_plan_limits
from orchestrator.services.idempotency import IdempotentRequest
from orchestrator.services.operator_actions import record_operator_event
from orchestrator.services.priority import end_emergencies
from orchestrator.services.unit_of_work.operation import operation
from runtime_jobs.db_time import database_now
from runtime_jobs.errors import OperatorOnly, VersionConflict
from runtime_jobs.events import Actor
from workers.models import Pool
from workers.registry.models import PoolPolicy


@operation
def set_limit(
    *,
    org_slug: str,
    job_type: str = ALL_TYPES,
    max_active: int | None,
    actor: Actor,
    reason: str,
    kind: LimitKind = LimitKind.ORGANIZATION,
    if_version: int | None = None,
    idempotency: IdempotentRequest | None = None,
    source_address: str | None = None,
    now: datetime | None = None,
) -> Limit | None:
    """Let at most `max_active` jobs of the organization and type run at once, or any number for None.

    `kind` EMERGENCY: of its jobs that skip the queue, whom no other limit holds. What runs above a lowered limit runs
    on; nothing new starts until there is room. Raises VersionConflict, OperatorOnly."""
    terms = None if max_active is None else {"max_active": max_active, "note": reason}
    subject = LimitTarget.of_organization(org_slug, job_type)
    return apply_limit_change(
        kind,
        subject,
        terms,
        actor=actor,
        reason=reason,
        if_version=if_version,
        idempotency=idempotency,
        source=source_address,
        now=now,
    )


@operation
def set_rate(
    *,
    org_slug: str,
    job_type: str = ALL_TYPES,
    per_hour: int | None,
    burst: int = 1,
    actor: Actor,
    reason: str,
    if_version: int | None = None,
    idempotency: IdempotentRequest | None = None,
    source_address: str | None = None,
    now: datetime | None = None,
) -> Limit | None:
    """Let `per_hour` jobs of the organization and type start in an hour, at most `burst` of them at once; None: any
    number. Those above it wait. Raises VersionConflict, OperatorOnly."""
    terms = None if per_hour is None else {"per_hour": per_hour, "burst": burst, "note": reason}
    subject = LimitTarget.of_organization(org_slug, job_type)
    return apply_limit_change(
        LimitKind.RATE,
        subject,
        terms,
        actor=actor,
        reason=reason,
        if_version=if_version,
        idempotency=idempotency,
        source=source_address,
        now=now,
    )


@operation
def set_pool_policy(
    *,
    pool: str,
    policy: PoolPolicy,
    actor: Actor,
    reason: str,
    source_address: str | None = None,
    now: datetime | None = None,
) -> None:
    """Serve the jobs of one priority strictly by age (`fifo`), or the organizations by turns (`fair`)."""
    row = Pool.objects.select_for_update(no_key=True).get(slug=pool)
    before, row.policy = row.policy, policy
    row.save(update_fields=["policy"])
    (enable_fair_share if policy == PoolPolicy.FAIR else disable_fair_share)(pool)
    record_operator_event(
        "pool.policy",
        target=f"pool:{pool}",
        actor=actor,
        before={"policy": before},
        after={"policy": str(policy)},
        reason=reason,
        source_address=source_address,
        now=now,
    )


@operation
def sync_plan(*, org_slug: str, now: datetime | None = None) -> str:  # noqa: ARG001 as every verb of the clock
    """Bring what holds an organization in line with its plan."""
    sync_plan_limits(org_slug)
    return org_slug


@operation
def keep_shares(*, pool: str) -> None:
    """Give each organization with a queue in a pool that shares its share of it."""
    row = Pool.objects.select_for_update(no_key=True).filter(slug=pool, policy=PoolPolicy.FAIR).first()
    if row is not None:
        enable_fair_share(pool)


def apply_limit_change(
    kind: LimitKind,
    subject: LimitTarget,
    terms: dict[str, Any] | None,
    *,
    actor: Actor,
    reason: str,
    source: str | None,
    if_version: int | None = None,
    idempotency: IdempotentRequest | None = None,
    now: datetime | None = None,
) -> Limit | None:
    """Put a limit on these terms, or lift it for None, and keep who did it: part of the verbs here and in `pausing`."""
    advisory_xact_lock(
        QUEUES_OF_ORGANIZATION, subject.org_slug
    )  # of two changes at once the later one sees the earlier
    before = subject.limit(kind)
    _require_may(kind, before, actor)
    if if_version is not None and if_version != (before.version if before else 0):
        raise VersionConflict("It was changed meanwhile.", version=before.version if before else 0)
    limit = None
    if terms is None:
        remove_limit(kind, subject)
        if kind == LimitKind.EMERGENCY and subject.key == ALL_TYPES:
            end_emergencies(subject.org_slug, at=now or database_now())  # no other limit holds them
    else:
        limit = put(kind, subject, at=now, actor=str(actor), **terms)
        if idempotency:
            idempotency.settle(str(limit.pk), at=now or database_now())
    record_operator_event(
        "limit.lifted" if limit is None else "limit.set",
        target=str(subject),
        actor=actor,
        before=_terms(before),
        after=_terms(limit),
        reason=reason,
        source_address=source,
        now=now,
    )
    return limit


def _require_may(kind: LimitKind, before: Limit | None, actor: Actor) -> None:
    """Not before the guard: an operator may be setting it at this moment."""
    if actor.kind == "client" and (kind == LimitKind.EMERGENCY or (before and before.is_an_operators)):
        raise OperatorOnly("Operators set this. Ask one.")


def _terms(limit: Limit | None) -> dict[str, Any]:
    if limit is None:
        return {}
    told = {name: getattr(limit, name) for name in ("kind", "max_active", "per_hour", "burst")}
    told["until"] = limit.until.isoformat() if limit.until else None
    return {name: value for name, value in told.items() if value is not None}
