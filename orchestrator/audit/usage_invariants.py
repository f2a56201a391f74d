"""Invariants of billed minutes: ledger, watermark and times agree."""

from orchestrator.audit.invariant import Invariant

# The rule of `orchestrator.services.metering.billed_minutes`.
_MINUTES = "greatest(1, ceil(greatest(0, floor(extract(epoch FROM {until} - {start}))) / 60))"
_BY_JOB = """(SELECT job_ulid, sum(minutes) AS minutes, max(minute) AS minute FROM usage_records GROUP BY job_ulid)"""

USAGE_INVARIANTS = (
    Invariant(
        "U1",
        "The usage records of a job add up to its last minute, and that is the watermark of the job.",
        f"""SELECT job_ulid FROM {_BY_JOB} u WHERE minutes <> minute
           UNION
           SELECT j.job_ulid FROM runtime_jobs j LEFT JOIN {_BY_JOB} u USING (job_ulid)
            WHERE coalesce(j.last_billed_minute, 0) <> coalesce(u.minute, 0)""",
    ),
    Invariant(
        "U2",
        "A usage record has the minutes of the execution up to its time, and those that no earlier record has.",
        f"""SELECT job_ulid FROM (SELECT *, lag(minute, 1, 0) OVER (PARTITION BY job_ulid ORDER BY minute) AS before
              FROM usage_records) u
            WHERE minute <> before + minutes OR recorded_at < billed_until
               OR minute <> {_MINUTES.format(until="billed_until", start="started_at")}""",
    ),
    Invariant(
        "U3",
        "A usage record is of a metered job, and begins with the execution of that job.",
        """SELECT j.job_ulid FROM runtime_jobs j JOIN usage_records u USING (job_ulid)
            WHERE NOT j.is_metered OR j.executing_at IS DISTINCT FROM u.started_at OR u.org_slug <> j.org_slug""",
    ),
    Invariant(
        "U4",
        "The execution of a metered job is billed up to the end of its lease, or to the expiry if that was earlier.",
        f"""SELECT j.job_ulid FROM runtime_jobs j
              JOIN runtime_worker_leases l ON l.job_ulid = j.job_ulid AND l.fence = j.fence
             WHERE j.is_metered AND j.executing_at IS NOT NULL AND l.completed_at IS NOT NULL
               AND coalesce(j.last_billed_minute, 0)
                   <> {_MINUTES.format(until="least(l.completed_at, l.expires_at)", start="j.executing_at")}""",
    ),
)
