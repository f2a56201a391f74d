"""The process's limit of open files, which bounds its connections before any setting does."""

import resource

SPARE = 256  # files beside client connections: database, log, spooled bodies


def raise_limit(connections: int) -> None:
    """Raises the soft limit to what so many connections need, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE if hard == resource.RLIM_INFINITY else min(connections + SPARE, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def fitting(connections: int) -> int:
    """Returns how many of so many connections fit into the soft limit.

    A process that runs out of files accepts no connection for a second, and opens no file either.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, soft - min(SPARE, soft // 4)))
