"""`manage.py runner`: registers runners of workflow jobs, lists them, drains them, rotates and revokes their tokens."""

import argparse
import json
import re
from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import CommandError
from django.db.models import Count, Q

from leases.states import OPEN as OPEN_LEASES
from orchestrator.core.cause import Cause
from orchestrator.core.datetimes import format_timestamp
from orchestrator.management.base import ServerCommand
from orchestrator.services import actions_runners, worker_state
from orchestrator.services.actions_runners import DEFAULT_LABELS
from runtime_jobs.errors import Invalid, LifecycleError
from runtime_jobs.events import Actor
from runtime_jobs.models.tenants import ISOLATION_CHOICES
from workers.models import ActionsRunner, RegistrationToken
from workers.registry.models import WorkerState

OPERATOR: Final = Actor("operator", "manage.py runner")
DEFAULT_OVERLAP: Final = "1h"
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str) -> timedelta:
    """Return a duration such as `90s`, `15m`, `12h`, `30d` or `0`."""
    if text == "0":
        return timedelta(0)
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is no duration; write 0, or a number with s, m, h or d, such as 12h")
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise ArgumentTypeError(f"{text!r} is too long") from None


class Command(ServerCommand):
    """Registers and manages runners."""

    help = "Registers, lists, drains and revokes runners of workflow jobs, and rotates their tokens."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        register = actions.add_parser("register", help="register a runner, and print its token once")
        register.add_argument("--name", required=True, help="letters, digits, underscores and hyphens, at most 100")
        register.add_argument("--labels", default=",".join(DEFAULT_LABELS), help="separated by commas")
        register.add_argument("--capacity", type=int, default=1, help="jobs at once, 1 to 64")
        register.add_argument("--pool", help="an existing pool; by default DEFAULT_POOL")
        register.add_argument(
            "--isolation", default="namespaces", choices=[name for name, _ in ISOLATION_CHOICES], help="of its jobs"
        )
        _add_token_arguments(register)
        listing = actions.add_parser("list", help="list the runners")
        listing.add_argument("--output", choices=["text", "json"], default="text")
        for action, text in {
            "drain": "let a runner finish its jobs, and give it no new ones",
            "undrain": "give a drained runner jobs again",
            "revoke": "refuse the tokens of a runner, and end its leases, for good",
        }.items():
            named = actions.add_parser(action, help=text)
            _add_name(named)
            named.add_argument("--reason", default="", help="recorded in the audit log")
        rotate = actions.add_parser("rotate-token", help="print a new token, and end the others after an overlap")
        _add_name(rotate)
        rotate.add_argument("--overlap", type=duration, default=DEFAULT_OVERLAP, help="of both tokens; by default 1h")
        rotate.add_argument("--reason", default="", help="recorded in the audit log")
        _add_token_arguments(rotate)

    def handle(self, *_: Any, **options: Any) -> None:
        act = getattr(self, f"_{options['action'].replace('-', '_')}")
        try:
            act(options)
        except Invalid as error:
            texts = (f"--{name.replace('_', '-')}: {' '.join(found)}" for name, found in error.errors.items())
            raise CommandError(" ".join(texts)) from None
        except LifecycleError as error:
            raise CommandError(error.message) from None

    def _register(self, options: dict[str, Any]) -> None:
        labels = [label for label in options["labels"].split(",") if label]
        created = actions_runners.register_runner(
            name=options["name"],
            labels=labels,
            capacity=options["capacity"],
            pool=options["pool"],
            isolation=options["isolation"],
            expires_in=options["expires_in"] or None,
            cause=Cause(OPERATOR),
        )
        self._print_token(*created, output=options["output"])

    def _rotate_token(self, options: dict[str, Any]) -> None:
        created = actions_runners.rotate_registration_token(
            name=options["name"],
            overlap=options["overlap"],
            expires_in=options["expires_in"] or None,
            cause=Cause(OPERATOR, options["reason"]),
        )
        self._print_token(*created, output=options["output"])

    def _print_token(self, runner: ActionsRunner, row: RegistrationToken, token: str, *, output: str) -> None:
        values = _values(runner) | {"token": token}
        if row.expires_at is not None:
            values["token_expires_at"] = format_timestamp(row.expires_at)
        if output == "json":
            self.stdout.write(json.dumps(values))
            return
        for name, value in values.items():
            self.stdout.write(f"{name}: {','.join(value) if isinstance(value, list) else value}")
        self.stderr.write("The token is shown once. Store it now.")

    def _list(self, options: dict[str, Any]) -> None:
        running = Count("worker__leases", filter=Q(worker__leases__state__in=OPEN_LEASES))
        rows = ActionsRunner.objects.select_related("worker__pool").annotate(running=running).order_by("name")
        found = [
            _values(runner)
            | {
                "pool": runner.worker.pool.slug,
                "state": str(runner.worker.state),
                "running": runner.running,
                "host_name": runner.host_name,
                "version": runner.version,
                "last_heartbeat_at": format_timestamp(runner.worker.last_seen_at),
            }
            for runner in rows
        ]
        if options["output"] == "json":
            self.stdout.write(json.dumps(found))
            return
        for values in found:
            labels = ",".join(values["labels"])
            self.stdout.write(
                f"{values['id']} {values['name']} {values['state']} {values['running']}/{values['capacity']}"
                f" {values['pool']} {labels} {values['last_heartbeat_at'] or 'never'}"
            )

    def _drain(self, options: dict[str, Any]) -> None:
        self._set_state(options, WorkerState.DRAINING)
        self.stdout.write(f"{options['name']}: draining")

    def _undrain(self, options: dict[str, Any]) -> None:
        self._set_state(options, WorkerState.ACTIVE)
        self.stdout.write(f"{options['name']}: active")

    def _revoke(self, options: dict[str, Any]) -> None:
        ended = actions_runners.revoke_runner(name=options["name"], cause=Cause(OPERATOR, options["reason"]))
        self.stdout.write(f"{options['name']}: revoked, {ended} leases ended")

    def _set_state(self, options: dict[str, Any], state: WorkerState) -> None:
        worker_state.set_worker_state(
            worker_id=actions_runners.find_runner(options["name"]).worker.worker_id,
            state=state,
            cause=Cause(OPERATOR, options["reason"]),
        )


def _add_name(parser: ArgumentParser) -> None:
    """Accept the name with and without its option, as other commands name what exists."""
    names = parser.add_mutually_exclusive_group(required=True)
    names.add_argument("name", nargs="?", default=argparse.SUPPRESS)
    names.add_argument("--name", default=argparse.SUPPRESS)


def _add_token_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--expires-in", type=duration, help="such as 30d; by default the token does not expire")
    parser.add_argument("--output", choices=["text", "json"], default="text")


def _values(runner: ActionsRunner) -> dict[str, Any]:
    return {
        "id": runner.pk,
        "name": runner.name,
        "labels": list(runner.labels),
        "capacity": runner.worker.capacity,
    }
