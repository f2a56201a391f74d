"""Configures Django's admin so that only processes with URLs import its pages (`orchestrator.admin`)."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core.checks import CheckMessage, Tags, register


class AdminAppConfig(SimpleAdminConfig):
    """The admin with the site of the theme. `config.urls` imports the pages.

    Django's own configuration imports them in each process: half of the time that a worker or scheduler takes to start.
    """

    default_site = "unfold.sites.UnfoldAdminSite"

    def ready(self) -> None:
        register(check_dependencies, Tags.admin)
        register(check_pages, Tags.admin)


def check_pages(**arguments: Any) -> list[CheckMessage]:
    """Import the pages, which may not have happened yet, and return what Django finds wrong in them."""
    admin.autodiscover()
    return list(check_admin_app(**arguments))
