"""The open channels of runners over all processes, for operators: each process reports its own every few seconds."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from runtime_jobs.db_functions import ClockTimestamp
from runtime_jobs.db_time import database_now
from workers.models import RunnerChannels, Worker

REPORT_SECONDS: Final = 10.0
# A process that was killed is forgotten after this time.
VALID_FOR: Final = timedelta(seconds=35)


def report_channels(process: str, channels: Mapping[int, Mapping[str, int]], versions: Mapping[int, str]) -> None:
    """Store the channels of a process in place of those that it reported before, and the versions of its runners.

    Args:
        process: The name of the process.
        channels: The number of channels by state, by the key of the runner. Empty: the process has none any more.
        versions: New versions of runners by their keys.
    """
    if channels:
        values = {str(key): dict(states) for key, states in channels.items()}
        defaults = {"channels": values, "expires_at": database_now() + VALID_FOR}
        RunnerChannels.objects.update_or_create(process=process, defaults=defaults)
    else:
        RunnerChannels.objects.filter(process=process).delete()
    for key, version in versions.items():
        Worker.objects.filter(pk=key).exclude(agent_version=version).update(agent_version=version)


def open_channels(workers: Iterable[Worker]) -> dict[int, Counter[str]]:
    """Return the number of open channels of these runners by state, by the keys of the runners, with one query."""
    found: dict[int, Counter[str]] = {worker.pk: Counter() for worker in workers}
    rows = RunnerChannels.objects.filter(expires_at__gt=ClockTimestamp()).values_list("channels", flat=True)
    for channels in rows:
        for key, counts in found.items():
            counts.update(channels.get(str(key), {}))
    return found
