"""`manage.py signingkey`: creates, lists and retires the keys that sign evidence."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from orchestrator.core.cause import Cause
from orchestrator.evidence.models import SigningKey
from orchestrator.evidence.signing_keys import (
    SigningKeyError,
    create_signing_key,
    has_private_key,
    retire_signing_key,
)
from orchestrator.management.base import ServerCommand
from runtime_jobs.events import Actor

OPERATOR = Actor("operator", "manage.py signingkey")


class Command(ServerCommand):
    """Creates, lists and retires signing keys."""

    help = "Creates, lists and retires the keys that sign evidence. The newest key that is not retired signs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        new = actions.add_parser("new", help="create a key, which signs from now on")
        new.add_argument("--reason", default="", help="stored in the audit log")
        listing = actions.add_parser("list", help="list the keys, the newest first")
        listing.add_argument("--pem", action="store_true", help="with the public keys")
        retire = actions.add_parser("retire", help="stop a key from signing; what it has signed stays valid")
        retire.add_argument("key_id", metavar="KEY_ID", help="the id, or its first digits")
        retire.add_argument("--reason", required=True, help="stored in the audit log")

    def handle(self, *_: Any, action: str, **options: Any) -> None:
        try:
            if action == "list":
                self._list(with_pem=options["pem"])
            elif action == "new":
                key = create_signing_key(actor=OPERATOR, reason=options["reason"])
                self.stdout.write(f"{key.key_id} signs from now on")
                self.stdout.write(key.public_pem, ending="")
            else:
                key = retire_signing_key(options["key_id"], cause=Cause(OPERATOR, options["reason"]))
                self.stdout.write(f"{key.key_id} is retired")
        except SigningKeyError as error:
            raise CommandError(str(error)) from None

    def _list(self, *, with_pem: bool) -> None:
        for key in SigningKey.objects.order_by("-created_at", "-pk"):
            state = f"retired {key.retired_at:%Y-%m-%d %H:%M:%S}" if key.retired_at else "active"
            place = "private key here" if has_private_key(key) else "private key not here"
            self.stdout.write(f"{key.key_id}  created {key.created_at:%Y-%m-%d %H:%M:%S}  {state}  {place}")
            if with_pem:
                self.stdout.write(key.public_pem, ending="")
