"""Computes all chains again: event histories of jobs, operator events, and checkpoints with their signatures and files.

Each function yields what is wrong as code, rule and place. Of each chain it names the first wrong part.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.chain_models import Checkpoint, EvidenceChain, OperatorEventLink
from orchestrator.evidence.checkpoint_files import CheckpointFile
from orchestrator.evidence.checkpoints import jobs_digest, statement_of
from orchestrator.evidence.dsse import EnvelopeRefused, verify
from orchestrator.evidence.operator_chains import link_hash
from runtime_jobs import events
from runtime_jobs.models import Job, OperatorEvent
from runtime_jobs.specs import JOB_TYPES

BATCH = 500  # rows that are in memory at a time

BrokenChain = tuple[str, str, str]  # code, rule, place
T = TypeVar("T")


def broken_histories() -> Iterator[BrokenChain]:
    """Yield the event histories whose hashes are wrong, or contradict the row of their job."""
    for job in Job.objects.order_by("id").iterator(chunk_size=BATCH):
        seq = events.first_invalid_seq(job.job_ulid)
        if seq is not None:
            yield "I8c", "The hash of every event is that of its row.", f"{job.job_ulid} at event {seq}"
        for part in events.unbound_parts(job, _input_digest(job)):
            rule = "The first and the final event bind the input and the result of the job."
            yield "I8d", rule, f"{job.job_ulid}: {part}"


def _input_digest(job: Job) -> str:
    """Return the digest of the specification in the columns of a job, empty if they no longer contain one."""
    try:
        return JOB_TYPES[job.job_type].from_job(job).digest
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def broken_operator_chains() -> Iterator[BrokenChain]:
    """Yield the first wrong link of each chain of operator events."""
    rule = "Each link has the hash of its operator event and of the link before."
    for chain in EvidenceChain.objects.order_by("org_slug"):
        wrong = _first_wrong_link(chain)
        if wrong:
            yield "E1h", rule, f"{chain}: {wrong}"


def _first_wrong_link(chain: EvidenceChain) -> str | None:
    seq, before = chain.deleted_events, chain.deleted_head
    links = OperatorEventLink.objects.filter(org_slug=chain.org_slug).order_by("seq")
    for batch in _batches(links.iterator(chunk_size=BATCH)):
        stored = OperatorEvent.objects.in_bulk([link.event_id for link in batch])
        for link in batch:
            seq += 1
            event = stored.get(link.event_id)
            if link.seq != seq:
                return f"event {seq} was deleted with its link"
            if event is None:
                return f"event {seq} was deleted"
            if link.prev_hash != before or link.hash != link_hash(event, seq=seq, prev_hash=before):
                return f"event {seq} ({event.event_ulid}) or its link was changed"
            before = link.hash
    if (chain.events, chain.head) != (seq, before):
        return f"the chain ends at event {seq} instead of {chain.events}"
    return None


def broken_checkpoints(public_keys: Sequence[Ed25519PublicKey]) -> Iterator[BrokenChain]:
    """Yield the first checkpoint of each organization that is not what was signed.

    Args:
        public_keys: The keys that the caller trusts.
    """
    rule = "Each checkpoint is signed, follows the one before, and describes the rows as they are."
    for chain in EvidenceChain.objects.order_by("org_slug"):
        previous = ""
        checkpoints = Checkpoint.objects.filter(org_slug=chain.org_slug).order_by("number")
        for number, checkpoint in enumerate(checkpoints.iterator(chunk_size=BATCH), start=1):
            wrong = next(_differences(checkpoint, chain, number, previous, public_keys), None)
            if wrong:
                yield "E5h", rule, f"checkpoint {number} of {chain}: {wrong}"
                break
            previous = checkpoint.sha256


def _differences(
    checkpoint: Checkpoint, chain: EvidenceChain, number: int, previous: str, public_keys: Sequence[Ed25519PublicKey]
) -> Iterator[str]:
    if checkpoint.number != number:
        yield "it is missing"
    try:
        payload = verify(checkpoint.envelope, public_keys, payload_type=form.STATEMENT_TYPE)
        predicate = orjson.loads(payload)["predicate"]
        operator_events = predicate["operatorEvents"]
        event_count, event_head = int(operator_events["count"]), operator_events["head"] or ""
    except EnvelopeRefused as error:
        yield str(error)
        return
    except (KeyError, TypeError, ValueError):
        yield "its payload is no checkpoint"
        return
    if hashlib.sha256(payload).hexdigest() != checkpoint.sha256:
        yield "its digest is that of another payload"
    if predicate.get("previous") != (previous or None):
        yield "it does not follow the checkpoint before"
    jobs = list(checkpoint.jobs.values_list("job_ulid", "seq", "head"))
    expected = statement_of(
        org_slug=chain.org_slug,
        number=number,
        created_at=checkpoint.created_at,
        job_count=len(jobs),
        jobs_sha256=jobs_digest(jobs),
        event_count=event_count,
        event_head=event_head,
        previous_sha256=previous,
    )
    if form.canonical(expected) != payload:
        yield "its jobs or its time are not those that were signed"
    known = _head_at(chain, event_count)
    if known is not None and event_head != known:
        yield f"operator event {event_count} is not the one that was signed"


def _head_at(chain: EvidenceChain, count: int) -> str | None:
    """Return the hash of a link, empty if there is none. None: retention has deleted it, and later ones."""
    if count < chain.deleted_events:
        return None
    if count == chain.deleted_events:
        return chain.deleted_head
    link = OperatorEventLink.objects.filter(org_slug=chain.org_slug, seq=count).first()
    return link.hash if link else ""


def broken_files(files: Iterable[CheckpointFile]) -> Iterator[BrokenChain]:
    """Yield the copies of checkpoints that differ from the rows, of each organization the first one.

    Args:
        files: The files. They were listed before the snapshot of the rows was taken.
    """
    rule = "Each copy of a checkpoint in CHECKPOINT_DIR is the copy of a row."
    reported: set[str] = set()
    for batch in _batches(files):
        rows = Checkpoint.objects.filter(org_slug__in={file.org_slug for file in batch})
        numbers = {file.number for file in batch}
        stored = {
            (slug, number): digest
            for slug, number, digest in rows.filter(number__in=numbers).values_list("org_slug", "number", "sha256")
        }
        for file in batch:
            digest = stored.get((file.org_slug, file.number))
            if digest != file.sha256 and file.org_slug not in reported:
                reported.add(file.org_slug)
                yield "E6", rule, f"{file.path}: " + ("no such row" if digest is None else "another content")


def _batches(rows: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH)):
        yield batch
