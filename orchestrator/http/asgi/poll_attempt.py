"""One look for work by a call that may wait: what the waiting room (`access.waiting`) and Django tell each other of it,
through the request's scope."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest

from orchestrator.http.auth.principals import WorkerPrincipal
from orchestrator.http.observability.access_log import AccessLogEntry, access_log_entry
from orchestrator.notifications.waiters import OfferKey

LOOK = "orchestrator.look"
NO_WORK, UNAVAILABLE = 204, 503
OFFERED = ("job_types", "labels", "capabilities", "pool")  # of a claim's body: what decides which jobs it can get


@dataclass
class PollAttempt:
    """`sent`: the claim's body. `until` is on the monotonic clock. `kind` is known once a worker has been told that
    there is no work. `goes_on`: this answer is kept back, and another look will follow."""

    sent: dict[str, Any]
    until: float
    kind: OfferKey | None = None
    line: AccessLogEntry | None = None
    goes_on: bool = False
    messages: list[Any] = field(default_factory=list)

    def weigh(self, request: HttpRequest, status: int) -> bool:
        """Decide whether the call goes on waiting after this answer. Once it does, the database may be away."""
        self.line = self.line or access_log_entry(request)
        waits = status in {NO_WORK, UNAVAILABLE} and self.kind is not None
        self.goes_on = waits and time.monotonic() < self.until
        return self.goes_on

    def nothing_for(self, request: HttpRequest) -> None:
        """Note which work the caller waits for."""
        caller: Any = getattr(request, "user", None)
        if isinstance(caller, WorkerPrincipal):
            offered = json.dumps({name: self.sent.get(name) for name in OFFERED}, sort_keys=True)
            worker = caller.worker
            self.kind = (worker.pool.slug, hash((request.path, offered, *worker.labels, "", *worker.capabilities)))


def poll_attempt(request: HttpRequest) -> PollAttempt | None:
    """The look that this request is, if somebody waits outside for what comes of it."""
    found = getattr(request, "scope", {}).get(LOOK)
    return found if isinstance(found, PollAttempt) else None
