"""Configuration of the `runtime_jobs` application."""

from django.apps import AppConfig


class RuntimeJobsConfig(AppConfig):
    """Jobs, their event history, and tenants."""

    name = "runtime_jobs"
    verbose_name = "Jobs"
