"""Invariants of pack runs: the plan that a job contains, and the pieces of artifacts."""

from orchestrator.audit.invariant import Invariant

PACK_INVARIANTS = (
    Invariant(
        "P1",
        "The plan in a pack run is that of the version that its payload names.",
        """SELECT j.job_ulid FROM runtime_jobs j JOIN runtime_jobs_organization o ON o.slug = j.org_slug
             LEFT JOIN pack_versions v ON v.organization_id = o.id AND v.pack_id = j.spec -> 'payload' ->> 'packId'
                   AND v.version = j.spec -> 'payload' ->> 'packVersion'
            WHERE j.job_type = 'pack-run' AND j.spec ? 'plan' AND j.spec -> 'plan' IS DISTINCT FROM v.plan""",
    ),
    Invariant(
        "P2",
        "An artifact has not received more bytes in pieces than were announced.",
        """SELECT artifact_ulid FROM runtime_stored_artifacts
            WHERE received_bytes NOT BETWEEN 0 AND byte_count""",
    ),
)
