"""The types of events that leave the server: in streams, in pages, to webhooks, and in notification rules.

No other module lists them. Events with other types, such as those of tokens and members, are in the audit log only.
"""

from typing import Final

PROGRESS: Final = "job.progress"
DASHBOARD, NOTIFY, EXPORT, INCIDENT, AUDIT = "dashboard", "notify", "export", "incident", "audit"
# The event types of document 004, section 6.2, each with its consumers there.
CONSUMERS: Final[dict[str, tuple[str, ...]]] = {
    "job.queued": (DASHBOARD, NOTIFY),
    "job.leased": (DASHBOARD,),
    "job.started": (DASHBOARD, NOTIFY),
    PROGRESS: (DASHBOARD,),
    "job.completed": (DASHBOARD, NOTIFY, EXPORT),
    "job.failed": (DASHBOARD, NOTIFY, INCIDENT),
    "job.canceled": (DASHBOARD, NOTIFY),
    "job.replayed": (DASHBOARD, AUDIT),
}
# Further events of jobs, under the names of the event history. Dashboards display all of them.
FURTHER_JOB_EVENTS: Final = (
    *("job.blocked", "job.unblocked", "job.requeued", "job.lost", "job.processing", "job.cancel_requested"),
    *("job.prioritized", "job.retried", "lease.expired", "lease.revoked", "lease.released"),
)
JOB_EVENT_TYPES: Final = (*CONSUMERS, *FURTHER_JOB_EVENTS)
# Actions of operators and of the server that tenants may read. A pause and a throttle are limits.
ORGANIZATION_EVENT_TYPES: Final = (
    *("limit.set", "limit.lifted", "quota.set"),
    *("breaker.opened", "breaker.half_opened", "breaker.closed", "breaker.reset"),
    *("incident.opened", "incident.acknowledged", "incident.resolved"),
    *("incident_mode.begun", "incident_mode.ended"),
    *("replay.matched", "replay.diverged", "replay.unverifiable"),
)
EVENT_TYPES: Final = (*JOB_EVENT_TYPES, *ORGANIZATION_EVENT_TYPES)

# Envelopes that are no event of the history: only deliveries have these types.
NOTIFICATION: Final = "notification"  # events that a rule has gathered
WEBHOOK_TEST: Final = "webhook.test"
DELIVERED_TYPES: Final = (*EVENT_TYPES, NOTIFICATION, WEBHOOK_TEST)
