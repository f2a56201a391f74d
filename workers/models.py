"""Django looks for a package's models here; they are written in `workers.registry`, where the server's half lives."""

from workers.registry.models import (
    ActionsRunner,
    HardwareSpec,
    Pool,
    RegistrationToken,
    Runner,
    RunnerChannels,
    Worker,
    WorkerSpec,
)

__all__ = [
    "ActionsRunner",
    "HardwareSpec",
    "Pool",
    "RegistrationToken",
    "Runner",
    "RunnerChannels",
    "Worker",
    "WorkerSpec",
]
