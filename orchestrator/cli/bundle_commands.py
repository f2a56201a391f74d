"""`stella orch export|verify`: audit bundles. The verification needs no server."""

from pathlib import Path
from typing import Any

from orchestrator.cli.arguments import timestamp
from orchestrator.cli.bundle_export import ExportedBundle, export_bundle
from orchestrator.cli.bundle_reading import add_bundle_options, read_bundle
from orchestrator.cli.commands import CommandContext, CommandGroup, add_timeout
from orchestrator.cli.errors import ExitCode


def register(group: CommandGroup) -> None:
    """Add the commands."""
    exporting = group.add("export", export, "Export the audit bundle of a tenant.")
    exporting.add_argument("--tenant", help="tenant (that of the token)")
    exporting.add_argument("--since", metavar="TIME", type=timestamp, required=True, help="jobs that ended later")
    exporting.add_argument("--until", metavar="TIME", type=timestamp, help="jobs that were created before (now)")
    exporting.add_argument("--output", metavar="FILE", type=Path, required=True, help="the bundle, such as b.tar.gz")
    add_timeout(exporting)
    add_bundle_options(group.add("verify", verify, "Verify an audit bundle, without a server.", is_online=False))


def export(context: CommandContext) -> int:
    """Export a bundle."""
    options = context.options
    found = export_bundle(context.client, options.output, export_request(options.tenant, options.since, options.until))
    write_bundle_summary(context, found)
    return ExitCode.OK


def export_request(tenant: str | None, since: str, until: str | None = None) -> dict[str, Any]:
    """Return the body of the submit of an export.

    Args:
        tenant: The tenant; None: that of the token.
        since: Jobs that ended before are left out.
        until: Jobs that were created later are left out; None: now.
    """
    payload = {"format": "audit-bundle", "since": since} | ({"until": until} if until else {})
    return {"payload": payload} | ({"tenant": tenant} if tenant else {})


def write_bundle_summary(context: CommandContext, found: ExportedBundle) -> None:
    """Write where a bundle is, and its digest."""
    context.printer.result(found.document(), f"{found.path}  {found.size} bytes  sha256:{found.sha256}")


def verify(context: CommandContext) -> int:
    """Verify a bundle."""
    found = read_bundle(context.options)
    lines = ", ".join(f"{count} in {name}" for name, count in found.lines.items())
    document = {
        "verified": True,
        "tenant": found.tenant,
        "since": found.since,
        "until": found.until,
        "keyId": found.key_id,
        "sha256": found.sha256,
        "lines": dict(found.lines),
    }
    text = f"verified: {found.tenant}, {found.since} to {found.until}, {lines}; signed by {found.key_id}"
    context.printer.result(document, text)
    return ExitCode.OK
