"""`manage.py plan`: changes the highest priority of a plan."""

from argparse import ArgumentParser
from typing import Any

from django.db import transaction

from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event
from orchestrator.management.base import ServerCommand, named, require_valid
from runtime_jobs.events import Actor
from runtime_jobs.models import Plan
from runtime_jobs.priorities import EMERGENCY, PRIORITIES


class Command(ServerCommand):
    """Changes a plan."""

    help = "Changes the priority of a plan: that of its jobs, and the highest one that they may request."

    def add_arguments(self, parser: ArgumentParser) -> None:
        change = parser.add_subparsers(dest="action", required=True).add_parser("change", help="change a plan")
        change.add_argument("name")
        choices = [name for name, number in PRIORITIES.items() if number < EMERGENCY]
        change.add_argument("--priority", required=True, choices=choices, help="of new jobs, and the highest one")

    def handle(self, *_: Any, **options: Any) -> None:
        with transaction.atomic():
            plan = named(Plan, options["name"], "NAME", column="name")
            before, plan.priority = plan.priority, PRIORITIES[options["priority"]]
            require_valid(plan)
            plan.save(update_fields=["priority"])
            record_operator_event(
                "plan.changed",
                target=f"plan:{plan}"[:200],
                cause=Cause(Actor("operator", "manage.py plan")),
                before={"priority": before},
                after={"priority": plan.priority},
            )
        self.stdout.write(f"plan {plan}: {options['priority']}")
