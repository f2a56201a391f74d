"""Pools that share their workers between organizations by weight, instead of serving strictly by age."""

from django.db import connection

from leases.models import LaneQueue, LaneShare
from runtime_jobs.models import Plan
from workers.registry.models import Pool, PoolPolicy


def ensure_share(pool: str, org_slug: str) -> None:
    """Create the share of an organization for its first job in a pool that shares; else do nothing."""
    if not _is_shared(pool):
        return
    weight = Plan.objects.filter(organizations__slug=org_slug).values_list("weight", flat=True).first() or 1
    LaneShare.objects.get_or_create(pool=pool, org_slug=org_slug, defaults={"weight": weight})


def _is_shared(pool: str) -> bool:
    """Return whether the pool is `fair`.

    The row lock waits for a transaction that changes the policy. That transaction does not see the new queue of the
    caller, so it creates no share for it: the caller must read the new policy.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT policy FROM workers_pool WHERE slug = %s FOR SHARE", [pool])
        return cursor.fetchall() == [(PoolPolicy.FAIR,)]


def enable_fair_share(pool: str) -> None:
    """Serve the organizations of this pool by their weights."""
    for org_slug in set(LaneQueue.objects.filter(pool=pool).values_list("org_slug", flat=True)):
        ensure_share(pool, org_slug)
    _recompute_ranks(pool)


def share_new_pool(*, instance: Pool, created: bool, **_: object) -> None:
    """Create the shares of organizations whose jobs waited before their pool was created."""
    if created and instance.policy == PoolPolicy.FAIR:
        enable_fair_share(instance.slug)


def pools_without_a_share(*, limit: int = 50) -> list[str]:
    """Return up to `limit` pools that share and have a queue of an organization without a share.

    The first job of the organization arrived while the pool was being created. Without a share it would be served last.
    """
    pools = Pool.objects.raw(
        """SELECT p.id, p.slug FROM workers_pool p
            WHERE p.policy = 'fair' AND EXISTS (
                SELECT FROM lane_queues q WHERE q.pool = p.slug AND NOT EXISTS (
                    SELECT FROM lane_shares s WHERE s.pool = q.pool AND s.org_slug = q.org_slug))
            ORDER BY p.id LIMIT %s""",
        [limit],
    )
    return [pool.slug for pool in pools]


def disable_fair_share(pool: str) -> None:
    """Serve strictly by age again."""
    LaneShare.objects.filter(pool=pool).delete()
    _recompute_ranks(pool)


def _recompute_ranks(pool: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT lock_queue_heads(ARRAY(SELECT id::bigint FROM lane_queues WHERE pool = %s))",
            [pool],
        )
        cursor.execute(
            """UPDATE queue_heads h
                  SET version = nextval('lane_versions'), served_at = NULL,
                      rank = coalesce(queue_rank(q.pool, q.org_slug, h.head_at), h.rank),
                      tier = queue_tier(q.pool, q.priority, h.head_at, NULL)
                FROM lane_queues q WHERE q.pool = %s AND h.queue_id = q.id""",
            [pool],
        )
