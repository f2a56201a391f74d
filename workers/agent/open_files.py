"""The worker's limit of open files, for the sum of all its jobs."""

from __future__ import annotations

import logging
import resource

from workers.engines.network.egress import MAX_CONNECTIONS
from workers.engines.network.fake_sockets import MAX_ENDPOINTS

logger = logging.getLogger(__name__)

PER_JOB = (
    MAX_ENDPOINTS + 2 * MAX_CONNECTIONS + 64
)  # sockets that lead nowhere, both ends of relayed ones, pipes and files
OWN = 256  # connections to the server, volumes, logs


def raise_limit(capacity: int) -> None:
    """Raise the soft limit to the need of so many jobs, as far as the hard limit allows.

    A worker without a free descriptor sends no heartbeat: one job would end all the others.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OWN + capacity * PER_JOB
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < needed:
        logger.warning(
            "limit of open files is too low: raise LimitNOFILE or lower --capacity limit=%d capacity=%d needed=%d",
            hard,
            capacity,
            needed,
        )
