"""Defines the base classes of the commands of the server."""

from argparse import ArgumentParser
from collections.abc import Collection
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.db.models import Model

from leases.checks import SETTINGS
from orchestrator.core.cause import Cause
from orchestrator.core.operator_events import record_operator_event, to_json_value
from runtime_jobs.events import Actor

M = TypeVar("M", bound=Model)


class ServerCommand(BaseCommand):
    """A command that refuses settings which are out of range.

    Django's own commands execute all system checks, for which they import every view: a second of CPU at each start.
    The other checks concern the code, and `manage.py check` and `migrate` execute them.
    """

    requires_system_checks: list[str] = [SETTINGS]


class AddCommand(ServerCommand):
    """A command whose action `add` creates a row that the admin can create, too. Both record the same event.

    Attributes:
        resource: The name of the resource, in the command and in events.
    """

    resource: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        self.add_fields(actions.add_parser("add", help=f"create a {self.resource}"))

    def add_fields(self, parser: ArgumentParser) -> None:
        """Add the arguments of `add`."""
        raise NotImplementedError

    def build(self, options: dict[str, Any]) -> tuple[Model, list[str]]:
        """Return the new row, and the fields that its event has."""
        raise NotImplementedError

    def handle(self, *_: Any, **options: Any) -> None:
        """Create the row, or refuse with one line."""
        with transaction.atomic():
            row, names = self.build(options)
            require_valid(row)
            row.save(force_insert=True)
            record_operator_event(
                f"{self.resource}.created",
                target=f"{self.resource}:{row}"[:200],
                cause=Cause(Actor("operator", f"manage.py {self.resource}")),
                after={name: to_json_value(getattr(row, name)) for name in names},
            )
        self.stdout.write(f"{self.resource} {row}")


def named(model: type[M], name: str, option: str, *, column: str = "slug") -> M:
    """Return the row that an option names.

    Raises:
        CommandError: There is none.
    """
    found = model._default_manager.filter(**{column: name}).first()  # noqa: SLF001 Django's name
    if found is None:
        raise CommandError(f"{option}: There is no {model._meta.verbose_name} {name!r}.")  # noqa: SLF001 as above
    return found


def require_valid(row: Model, *, fields: Collection[str] = ()) -> None:
    """Check a row, or only some of its fields.

    Raises:
        CommandError: One of them is not valid.
    """
    try:
        others = {field.name for field in row._meta.fields if fields and field.name not in fields}  # noqa: SLF001 as above
        row.full_clean(exclude=others)
    except ValidationError as error:
        texts = (f"{name}: {' '.join(found)}" for name, found in error.message_dict.items())
        raise CommandError(" ".join(texts)) from None
