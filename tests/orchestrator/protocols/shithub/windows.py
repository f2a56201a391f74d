"""Changes rows of this protocol that no call of it can change."""

from orchestrator.limits.throttles import ThrottleWindow, Window
from orchestrator.protocols.shithub.heartbeat_rate import HEARTBEATS, WINDOW_SECONDS
from tests.orchestrator.protocols.shithub.world import RegisteredRunner


def forget_heartbeats(runner: RegisteredRunner) -> None:
    """Let the runner send a minute's number of heartbeats again."""
    ThrottleWindow.objects.filter(key=heartbeat_window(runner).key).delete()


def heartbeat_window(runner: RegisteredRunner) -> Window:
    """Return the window in which the heartbeats of the runner are counted."""
    return Window(HEARTBEATS, str(runner.row.pk), WINDOW_SECONDS)
