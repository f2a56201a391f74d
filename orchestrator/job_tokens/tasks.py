"""Housekeeping of used tokens: partitions for the next days, and the end of those that nothing needs any more."""

import logging
from datetime import UTC, timedelta

from orchestrator.housekeeping.registry import task
from orchestrator.job_tokens.partitions import create_partitions, drop_expired_partitions
from runtime_jobs.db_time import database_now

log = logging.getLogger(__name__)


@task("token_partitions", every=lambda: timedelta(hours=1), is_standing=True)
def keep_partitions(_: str) -> None:
    """Create the partitions of the next days, and drop those of which all tokens have expired long ago."""
    now = database_now()
    create_partitions(now.astimezone(UTC).date())
    for day in drop_expired_partitions(now):
        log.info("the used tokens that expired on %s were dropped", day)
