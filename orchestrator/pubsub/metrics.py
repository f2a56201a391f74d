"""Metrics of long polls, log streams and WebSockets of one process. `http.observability.metrics` registers them."""

from prometheus_client import Counter, Gauge, Histogram

WAITING = Gauge("orchestrator_waiting_claims", "Claims that wait for work in this process.", registry=None)
LISTENER_UP = Gauge(
    "orchestrator_listener_up", "1 while this process receives notifications of the database.", registry=None
)
LISTENER_LOSSES = Counter(
    "orchestrator_listener_losses", "Times that this process stopped receiving notifications.", registry=None
)
ATTEMPTS = Counter(
    "orchestrator_claim_looks",
    "Attempts of claims that may wait, by cause and outcome.",
    ["cause", "outcome"],
    registry=None,
)
STREAMS = Gauge("orchestrator_streams", "Open log streams of this process, by kind.", ["kind"], registry=None)
FOLLOWED = Gauge("orchestrator_followed_jobs", "Jobs whose log is followed in this process.", registry=None)
ENDED = Counter("orchestrator_streams_ended", "Log streams that ended, by reason.", ["reason"], registry=None)
STREAMS_REFUSED = Counter(
    "orchestrator_streams_refused", "Log streams refused, by the limit that was reached.", ["limit"], registry=None
)
READS = Counter("orchestrator_stream_reads", "Database reads for all log streams together.", registry=None)
EVENT_LISTENERS = Gauge("orchestrator_event_listeners", "Listeners of the event feed in this process.", registry=None)
EVENT_READER_BEHIND = Gauge(
    "orchestrator_event_reader_behind_seconds",
    "Age of the oldest committed event that listeners of this process have not got yet; 0 if they have all.",
    registry=None,
)
EVENTS_READ = Counter(
    "orchestrator_events_read", "Events that were read for the listeners of this process.", registry=None
)
EVENT_GAPS = Counter(
    "orchestrator_event_gaps",
    "Streams of events in which events are missing, by reason (too_old, too_slow, restored).",
    ["reason"],
    registry=None,
)
SOCKETS = Gauge(
    "orchestrator_sockets",
    "Open WebSocket sessions of this process, by kind (channel, job, graphql) and state.",
    ["kind", "state"],
    registry=None,
)
ENDED_SOCKETS = Counter(
    "orchestrator_sockets_ended",
    "WebSocket sessions that ended, by kind and cause: closed or dropped by the server, disconnected, stalled, failed.",
    ["kind", "cause"],
    registry=None,
)
PACK_RUN_LOG_LAG = Histogram(
    "pack_run_logs_stream_lag_seconds",
    "Seconds from the arrival of log bytes of a pack run until this process sends them to followers.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=None,
)
ALL = (
    WAITING,
    LISTENER_UP,
    LISTENER_LOSSES,
    ATTEMPTS,
    STREAMS,
    FOLLOWED,
    ENDED,
    STREAMS_REFUSED,
    READS,
    EVENT_LISTENERS,
    EVENT_READER_BEHIND,
    EVENTS_READ,
    EVENT_GAPS,
    SOCKETS,
    ENDED_SOCKETS,
    PACK_RUN_LOG_LAG,
)
