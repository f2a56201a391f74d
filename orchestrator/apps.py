"""Django's configuration of the server's app."""

from django.apps import AppConfig


class OrchestratorConfig(AppConfig):
    """Registers the system checks and the receivers of signals when the app is ready."""

    name = "orchestrator"
    verbose_name = "Orchestrator"

    def ready(self) -> None:
        from orchestrator import checks  # noqa: F401, PLC0415 registers itself, once the settings are there
        from orchestrator.results import names  # noqa: F401, PLC0415 as above
