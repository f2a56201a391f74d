"""Lists the modules that declare housekeeping tasks."""

from importlib import import_module
from typing import Final

TASK_MODULES: Final = (
    "orchestrator.artifacts.tasks",
    "orchestrator.identity.tasks",
    "orchestrator.job_tokens.tasks",
    "orchestrator.repositories.tasks",
    "orchestrator.step_logs.tasks",
    "orchestrator.workflows.schedules",
    "orchestrator.workflows.tasks",
    "orchestrator.workflows.triggers",
)


def load() -> None:
    """Import the modules, so that their tasks are declared."""
    for name in TASK_MODULES:
        import_module(name)
