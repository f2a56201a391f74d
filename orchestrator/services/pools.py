"""The order in which a pool serves jobs of one priority."""

from leases.scheduling.fair_share import disable_fair_share, enable_fair_share
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.core.unit_of_work import UnitOfWork, operation
from workers.models import Pool
from workers.registry.models import PoolPolicy


@operation
def set_pool_policy(
    _: UnitOfWork,
    *,
    pool: str,
    policy: PoolPolicy,
    cause: Cause,
) -> None:
    """Set the order in which a pool serves jobs of one priority.

    Args:
        pool: The slug of the pool.
        policy: `fifo` serves the oldest job first, `fair` shares the pool between organizations by weight.
    """
    row = Pool.objects.select_for_update(no_key=True).get(slug=pool)
    before, row.policy = row.policy, policy
    row.save(update_fields=["policy"])
    if policy == PoolPolicy.FAIR:
        enable_fair_share(pool)
    else:
        disable_fair_share(pool)
    record_operator_event(
        "pool.policy",
        target=f"pool:{pool}",
        cause=cause,
        before={"policy": before},
        after={"policy": str(policy)},
    )


@operation
def keep_shares(_: UnitOfWork, *, pool: str) -> None:
    """Give each organization with a queue in a `fair` pool its share of the pool."""
    row = Pool.objects.select_for_update(no_key=True).filter(slug=pool, policy=PoolPolicy.FAIR).first()
    if row is not None:
        enable_fair_share(pool)
