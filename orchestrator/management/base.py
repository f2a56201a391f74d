"""Defines the base class of the commands of the server."""

from django.core.management.base import BaseCommand

from leases.checks import SETTINGS


class ServerCommand(BaseCommand):
    """A command that refuses settings which are out of range.

    Django's own commands execute all system checks, for which they import every view: a second of CPU at each start.
    The other checks concern the code, and `manage.py check` and `migrate` execute them.
    """

    requires_system_checks: list[str] = [SETTINGS]
