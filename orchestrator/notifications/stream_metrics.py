"""Numbers of the streams of this process. `orchestrator.http.observability.metrics` registers them."""

from prometheus_client import Counter, Gauge

STREAMS = Gauge("orchestrator_streams", "Open log streams of this process, by kind.", ["kind"], registry=None)
FOLLOWED = Gauge("orchestrator_followed_jobs", "Jobs whose log is followed in this process.", registry=None)
ENDED = Counter("orchestrator_streams_ended", "Streams that ended, by the reason.", ["reason"], registry=None)
REFUSED = Counter(
    "orchestrator_streams_refused", "Streams refused, by the limit that was met.", ["limit"], registry=None
)
READS = Counter("orchestrator_stream_reads", "Reads of the database for all streams together.", registry=None)
ALL = (STREAMS, FOLLOWED, ENDED, REFUSED, READS)
