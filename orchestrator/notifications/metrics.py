"""What this process can tell of those that wait in it. `orchestrator.http.observability.metrics` shows it."""

from prometheus_client import Counter, Gauge

WAITING = Gauge("orchestrator_waiting_claims", "Claims that wait for work in this process.", registry=None)
LISTENER_UP = Gauge("orchestrator_listener_up", "Whether this process hears the database's calls.", registry=None)
LISTENER_LOSSES = Counter("orchestrator_listener_losses", "How often it stopped hearing them.", registry=None)
LOOKS = Counter(
    "orchestrator_claim_looks",
    "Looks for work by claims that may wait, by what caused them and what came of it.",
    ["cause", "outcome"],
    registry=None,
)
ALL = (WAITING, LISTENER_UP, LISTENER_LOSSES, LOOKS)
