"""`stella quota show|set`."""

from typing import Any, Final
from urllib.parse import quote

from orchestrator.cli.arguments import limit_or_none
from orchestrator.cli.commands import PAGE, CommandContext, CommandGroup
from orchestrator.cli.errors import ExitCode, UsageError
from orchestrator.cli.pages import read_pages

_TITLES: Final = ("QUOTA", "ACTIVE", "MAX ACTIVE", "STARTED/H", "MAX/H", "BURST", "EMERGENCY", "NEXT START")
_LIMITS: Final = {"--max-active": "maxActive", "--max-per-hour": "maxPerHour", "--burst": "burst"}


def register(group: CommandGroup) -> None:
    """Add the commands."""
    showing = group.add("show", show, "Show quotas and their use.")
    showing.add_argument("--tenant", help="of this tenant (of all that the token may see)")
    showing.add_argument("--type", dest="job_type", metavar="TYPE", help="of this job type; * is all types together")
    setting = group.add("set", set_quota, "Change limits of one quota, all at once.")
    setting.add_argument("--tenant", required=True)
    setting.add_argument("--type", dest="job_type", metavar="TYPE", default="*", help="job type (*: all together)")
    for option, help_text in (
        ("--max-active", "running jobs"),
        ("--max-per-hour", "starts per hour"),
        ("--burst", "starts at once after an idle period"),
        ("--emergency-max-active", "running emergency jobs; only operators may set it"),
    ):
        setting.add_argument(
            option, metavar="N", type=limit_or_none, default=_UNCHANGED, help=f"{help_text}; none: no limit"
        )
    setting.add_argument("--reason", help="a sentence for the audit log")


_UNCHANGED: Final = object()


def show(context: CommandContext) -> int:
    """Show quotas."""
    options, printer = context.options, context.printer
    query = {"tenant": options.tenant, "jobType": options.job_type, "limit": PAGE}
    quotas = read_pages(context.client, "/api/quotas", query, None)
    if printer.is_json:
        printer.value(quotas)
    else:
        printer.table(_TITLES, [_row(found) for found in quotas])
    return ExitCode.OK


def set_quota(context: CommandContext) -> int:
    """Change one quota. It is refused if another request changes the quota meanwhile."""
    options, printer = context.options, context.printer
    patch = _patch(context)
    path = f"/api/quotas/{quote(f'{options.tenant}:{options.job_type}', safe='')}"
    read = context.client.get(path)
    changed = context.client.call("PATCH", path, patch, headers={"If-Match": read.headers["ETag"]}).body
    if printer.is_json:
        printer.value(changed)
    else:
        printer.table(_TITLES, [_row(changed)])
    return ExitCode.OK


def _patch(context: CommandContext) -> dict[str, Any]:
    """Return the merge patch of the options.

    Raises:
        UsageError: There is no change.
    """
    options = vars(context.options)
    given = {member: options[option.removeprefix("--").replace("-", "_")] for option, member in _LIMITS.items()}
    patch: dict[str, Any] = {member: value for member, value in given.items() if value is not _UNCHANGED}
    emergency = context.options.emergency_max_active
    if emergency is not _UNCHANGED:
        patch["priority"] = {"emergency": None if emergency is None else {"maxActive": emergency}}
    if not patch:
        raise UsageError(f"One of {', '.join([*_LIMITS, '--emergency-max-active'])} is needed.")
    return patch | ({"reason": context.options.reason} if context.options.reason else {})


def _row(quota: dict[str, Any]) -> list[Any]:
    emergency = quota["priority"]["emergency"]
    return [
        *(quota[name] for name in ("id", "active", "maxActive", "startedLastHour", "maxPerHour", "burst")),
        emergency and emergency["maxActive"],
        quota["nextEligibleAt"],
    ]
