"""`stella job replay|verify`: run a job again, and prove that it came out the same."""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from orchestrator.cli.bundle_commands import export_request
from orchestrator.cli.bundle_export import export_bundle
from orchestrator.cli.bundle_reading import add_bundle_options, read_bundle
from orchestrator.cli.client import StellaClient
from orchestrator.cli.commands import CommandContext, CommandGroup, add_job_id, add_timeout
from orchestrator.cli.deadlines import Deadline, Patience
from orchestrator.cli.errors import CommandFailed, ExitCode, UsageError
from orchestrator.cli.job_waiting import wait_for_end

MATCH: Final = "match"
REPLAYS: Final = "replays.jsonl"
DEFAULT_REASON: Final = "replayed by the command line"


def register(group: CommandGroup) -> None:
    """Add the commands."""
    replaying = group.add("replay", replay, "Run an ended job again with the same input, and compare the outputs.")
    add_job_id(replaying)
    replaying.add_argument("--reason", default=DEFAULT_REASON, help="a sentence for its history")
    replaying.add_argument("--priority", help="low, normal, high or emergency (that of the plan)")
    replaying.add_argument("--sealed", action="store_true", help="without network; refused if an input is not pinned")
    replaying.add_argument("--wait", action="store_true", help="wait for the verdict: 0 is a match, 1 any other one")
    replaying.add_argument(
        "--bundle", metavar="FILE", type=Path, help="as --wait, and export both jobs for stella job verify"
    )
    add_timeout(replaying)
    verifying = group.add(
        "verify", verify, "Compare a job with its replays in a bundle, without a server.", is_online=False
    )
    add_job_id(verifying, "--job-id")
    add_bundle_options(verifying)


def replay(context: CommandContext) -> int:
    """Queue a replay, and wait for its verdict if that is requested."""
    options, client = context.options, context.client
    waits = options.wait or options.bundle is not None
    if options.timeout is not None and not waits:
        raise UsageError("--timeout needs --wait or --bundle.")
    body = {"reason": options.reason, "sealed": options.sealed}
    client.deadline = Deadline(None)  # of a request that is broken off, the id of the replay would not be known
    record = client.call(
        "POST",
        f"/api/jobs/{options.job_id}/replay",
        body | ({"priority": options.priority} if options.priority else {}),
        headers={"Idempotency-Key": str(uuid4())},
        is_repeatable=True,
    ).body
    client.deadline = context.deadline
    client.deadline.begin()
    if not waits:
        context.printer.result(record, record["jobId"])
        return ExitCode.OK
    context.printer.note(record["jobId"])
    found = _wait_for_verdict(client, record["jobId"])
    if options.bundle is not None:
        found["bundle"] = _export_both(client, options.job_id, options.bundle)
    context.printer.result(found, _line_of(found))
    return _exit_code_of([found["verdict"]])


def _wait_for_verdict(client: StellaClient, replay_id: str) -> dict[str, Any]:
    """Return a replay with its verdict, which the scheduler process records soon after the end of the job."""
    wait_for_end(client, replay_id)
    patience = Patience(client.deadline)
    while True:
        found: dict[str, Any] = client.get(f"/api/jobs/{replay_id}/replay").body
        if found["verdict"] is not None:
            return found
        patience.wait()


def _export_both(client: StellaClient, original_id: str, path: Path) -> dict[str, Any]:
    """Export the time from the end of the job to now, in which its replay is, too."""
    original = client.get(f"/api/jobs/{original_id}").body
    return export_bundle(client, path, export_request(original["tenant"], original["completedAt"])).document()


def verify(context: CommandContext) -> int:
    """Compare the manifests of a job and of its replays in a bundle.

    The verdicts in the bundle prove nothing, and must be those of the manifests.
    """
    from orchestrator.evidence.replay_comparison import (  # noqa: PLC0415 only this command needs it
        ContradictedVerdict,
        confirm_record,
    )

    verdicts = []
    for entry in _replays_in(context.options):
        try:
            compared = confirm_record(entry)
        except ContradictedVerdict as error:
            raise CommandFailed(ExitCode.FAILED, str(error), code="contradicted_verdict") from None
        if compared is None:
            message = f"The replay {entry['jobId']} had no verdict when the bundle was written."
            raise CommandFailed(ExitCode.FAILED, message, code="no_verdict")
        document = {
            "jobId": entry["jobId"],
            "replayOf": entry["replayOf"],
            "verdict": compared.verdict,
            "difference": None if compared.difference is None else asdict(compared.difference),
            "reasons": list(compared.reasons),
        }
        context.printer.result(document, _line_of(document))
        verdicts.append(compared.verdict)
    return _exit_code_of(verdicts)


def _replays_in(options: argparse.Namespace) -> Iterable[Mapping[str, Any]]:
    """Return the replays of a job in a verified bundle, or the job itself if it is one.

    Raises:
        CommandFailed: The bundle is not verified, or has no such replay.
    """
    found: list[Mapping[str, Any]] = []

    def collect(file: str, entry: Mapping[str, Any]) -> None:
        if file == REPLAYS and options.job_id in (entry["jobId"], entry["replayOf"]):
            found.append(entry)

    read_bundle(options, collect)
    if not found:
        raise CommandFailed(ExitCode.NOT_FOUND, f"The bundle has no replay of {options.job_id}.", code="not_found")
    return found


def _exit_code_of(verdicts: list[str]) -> ExitCode:
    return ExitCode.OK if set(verdicts) == {MATCH} else ExitCode.FAILED


def _line_of(found: Mapping[str, Any]) -> str:
    """Return one line about a replay with a verdict."""
    line = f"{found['verdict']}: {found['jobId']} is a replay of {found['replayOf']}"
    if difference := found["difference"]:
        line += f"; {difference['path']}: expected {difference['expected']!r}, found {difference['found']!r}"
    return line + "".join(f"; {reason}" for reason in found["reasons"])
