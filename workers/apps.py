"""Django's configuration of the app `workers`."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    """Names the app in the admin."""

    name = "workers"
    verbose_name = "Workers"
