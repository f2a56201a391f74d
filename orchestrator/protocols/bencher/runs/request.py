"""A validated request for a run, and its sender."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from orchestrator.images.references import ImageReference
from orchestrator.protocols.bencher.authentication import BencherCaller
from orchestrator.protocols.bencher.runs.context import RunContext


@dataclass(frozen=True)
class BenchmarkJob:
    """The requested job of a run. The names are those of `OciSpec`.

    Attributes:
        reference: The image.
        image: The text of the reference, or None for a digest alone.
        spec: The UUID or slug of the hardware spec, or None.
        timeout_seconds: The requested timeout, or None for that of the plan.
    """

    reference: ImageReference
    image: str | None
    spec: str | None
    timeout_seconds: int | None = None
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: Mapping[str, str] | None = None
    file_paths: tuple[str, ...] | None = None
    build_time: bool | None = None
    file_size: bool | None = None
    iterations: int | None = None
    allow_failure: bool | None = None
    backdate: str | None = None


@dataclass(frozen=True)
class RunRequest:
    """A validated run.

    Attributes:
        project: The UUID or slug of the project, or None.
        branch: The name, slug or UUID of the branch.
        git_hash: The commit, or None.
        testbed: The name, slug or UUID of the testbed. None: the testbed is named after the hardware spec.
        start_time: The start of a run without a job.
        end_time: Its end.
        results: What its benchmarks printed.
        adapter: The name of the adapter that reads the results.
        average: The requested average, or None.
        fold: How several iterations become one, or None.
        context: The context of the run.
        idempotency_key: A repeated request with this key returns the first report, or None.
        spec_reset: Do not use the hardware spec of the testbed.
        job: The job, or None.
    """

    project: str | None
    branch: str
    git_hash: str | None
    testbed: str | None
    start_time: datetime | None
    end_time: datetime | None
    results: tuple[str, ...]
    adapter: str
    average: str | None
    fold: str | None
    context: RunContext
    idempotency_key: UUID | None
    spec_reset: bool
    job: BenchmarkJob | None


@dataclass(frozen=True)
class RunSender:
    """The sender of a run.

    Attributes:
        caller: The person, the key of a project, or an anonymous caller.
        source_address: The sender's IP address.
        correlation_id: An id of the sender that links requests.
    """

    caller: BencherCaller
    source_address: str
    correlation_id: str
