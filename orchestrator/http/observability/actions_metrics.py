"""Prometheus metrics of workflow jobs, with the names and labels of document 003. All values exist from the start."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric


class ActionsCounter(NamedTuple):
    """A counter of document 003.

    Attributes:
        stored: The name in `metric_counts`.
        help_text: What is counted.
        label: The name of the label, or empty.
        values: The values of the label.
    """

    stored: str
    help_text: str
    label: str = ""
    values: tuple[str, ...] = ("",)


ACTIONS_COUNTERS: Final = {
    "shithub_actions_runner_registrations": ActionsCounter("actions_registrations", "Runners that were registered."),
    "shithub_actions_runner_heartbeats": ActionsCounter(
        "actions_heartbeats", "Heartbeats by their result.", "result", ("claimed", "no_job")
    ),
    "shithub_actions_runner_jwt": ActionsCounter(
        "actions_jwt", "Tokens of jobs by what happened to them.", "result", ("issued", "rejected", "replay")
    ),
    "shithub_actions_jobs_cancelled": ActionsCounter(
        "actions_cancels", "Jobs that were canceled or requested to stop.", "reason", ("user", "concurrency", "timeout")
    ),
    "shithub_actions_concurrency_queued": ActionsCounter(
        "actions_concurrency_queued", "Runs that began to wait for an older run of their group."
    ),
    "shithub_actions_log_scrub_replacements": ActionsCounter(
        "actions_scrub_replacements", "Secrets that were replaced in logs.", "location", ("server",)
    ),
    "shithub_actions_runs_pruned": ActionsCounter(
        "actions_runs_pruned", "What retention has deleted.", "kind", ("chunks", "blobs", "runs", "jwt_used")
    ),
    "shithub_actions_step_timeouts": ActionsCounter("actions_step_timeouts", "Steps that ended as timed out."),
}


def actions_metrics(counts: Iterable[tuple[str, str, float]]) -> Iterator[Metric]:
    """Yield the counters.

    Args:
        counts: Name, detail and value of stored counts. Others than those of this module are ignored.
    """
    found = {(name, detail): value for name, detail, value in counts}
    for name, counter in ACTIONS_COUNTERS.items():
        family = CounterMetricFamily(name, counter.help_text, labels=[counter.label] if counter.label else [])
        for value in counter.values:
            family.add_metric([value] if counter.label else [], found.get((counter.stored, value), 0.0))
        yield family
