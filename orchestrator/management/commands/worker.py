"""`manage.py worker`: registers workers."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from orchestrator.core.cause import Cause
from orchestrator.management.base import ServerCommand, named, require_valid
from orchestrator.services import credentials
from runtime_jobs.errors import Invalid
from runtime_jobs.events import Actor
from workers.models import Pool, Worker
from workers.registry.models import registered_capabilities


class Command(ServerCommand):
    """Registers a worker and prints its token."""

    help = "Registers a worker of a pool. Prints its id and its token, once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        register = parser.add_subparsers(dest="action", required=True).add_parser(
            "register", help="register a worker, and print its token once"
        )
        register.add_argument("--name", required=True, help="letters, digits and hyphens")
        register.add_argument("--pool", required=True, help="an existing pool")
        register.add_argument("--capacity", type=int, default=1, help="jobs at once")
        register.add_argument("--labels", default="", help="separated by commas")
        everything = ",".join(registered_capabilities())
        capabilities = f"what its machine really has, separated by commas; by default {everything}"
        register.add_argument("--capabilities", default=everything, help=capabilities)
        register.add_argument("--output", choices=["text", "json"], default="text")

    def handle(self, *_: Any, **options: Any) -> None:
        labels, capabilities = (_words(options[name]) for name in ("labels", "capabilities"))
        pool = named(Pool, options["pool"], "--pool")
        fields = {"capacity": options["capacity"], "labels": labels, "capabilities": capabilities}
        require_valid(Worker(slug=options["name"], pool=pool, **fields), fields=["slug", *fields])
        operator = Actor("operator", "manage.py worker")
        try:
            worker, token = credentials.register_worker(
                slug=options["name"], pool=pool, **fields, cause=Cause(operator)
            )
        except Invalid as error:
            texts = (f"--{field}: {' '.join(found)}" for field, found in error.errors.items())
            raise CommandError(" ".join(texts)) from None
        values = {"worker_id": worker.worker_id, "name": worker.slug, "pool": worker.pool.slug, "token": token}
        if options["output"] == "json":
            self.stdout.write(json.dumps(values))
            return
        for field, value in values.items():
            self.stdout.write(f"{field}: {value}")
        self.stderr.write("The token is shown once. Store it now.")


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]
