"""Django's configuration of the server's app, and the table of what follows the end of a job."""

from django.apps import AppConfig


class OrchestratorConfig(AppConfig):
    """Registers the system checks and the receivers of signals when the app is ready."""

    name = "orchestrator"
    verbose_name = "Orchestrator"

    def ready(self) -> None:
        """Bind what lower folders call in folders above them."""
        # ruff: noqa: PLC0415 once the settings are there
        from orchestrator import checks  # noqa: F401 registers itself
        from orchestrator.artifacts.operations import bind_artifacts
        from orchestrator.core import work_signals
        from orchestrator.pubsub import hub, job_updates
        from orchestrator.results import names  # noqa: F401 registers itself
        from orchestrator.services.dependency_propagation import propagate_end
        from orchestrator.services.signals import cancel_requested, job_ended
        from orchestrator.step_logs.steps import close_open_steps
        from orchestrator.workflows.workflow_end import settle_run_of

        work_signals.bind(wake=hub.hand_over, announcer=hub.pool_announcer)
        # In this order: steps are closed before the artifacts of the job are bound.
        for receive in (close_open_steps, bind_artifacts, job_updates.announce_end, propagate_end, settle_run_of):
            job_ended.connect(receive)
        cancel_requested.connect(settle_run_of)
