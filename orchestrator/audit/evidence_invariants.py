"""Invariants of evidence: links of operator events, and checkpoints with the jobs that they cover.

These find missing rows. `audit.chains` computes the hashes again and verifies the signatures.
"""

from orchestrator.audit.invariant import Invariant, listed
from orchestrator.evidence.positions import CHECKPOINTS, OPERATOR_EVENTS
from runtime_jobs.states import FINAL_STATES

_CHAIN = "CASE org_slug WHEN '' THEN 'installation' ELSE org_slug END"

EVIDENCE_INVARIANTS = (
    Invariant(
        "E1",
        "Each link belongs to an operator event, and the links of a chain have all numbers after the deleted ones.",
        f"""SELECT {_CHAIN} || ' #' || seq FROM operator_event_links l
             WHERE NOT EXISTS (SELECT FROM operator_events o WHERE o.id = l.event_id)
           UNION
           SELECT {_CHAIN} || ' #' || seq FROM
                  (SELECT l.org_slug, l.seq, c.org_slug IS NULL AS is_unknown,
                          lag(l.seq, 1, c.deleted_events) OVER (PARTITION BY l.org_slug ORDER BY l.seq) AS before
                     FROM operator_event_links l LEFT JOIN evidence_chains c USING (org_slug)) numbered
            WHERE is_unknown OR seq <> before + 1
           UNION
           SELECT {_CHAIN} || ' #' || events FROM evidence_chains c
            WHERE events <> coalesce((SELECT max(seq) FROM operator_event_links l WHERE l.org_slug = c.org_slug),
                                     deleted_events)""",
    ),
    Invariant(
        "E2",
        "Each operator event up to the position of its chains has a link.",
        f"""SELECT o.event_ulid FROM operator_events o JOIN evidence_positions p ON p.name = '{OPERATOR_EVENTS}'
             WHERE (o.xid, o.id) <= (p.stamp, p.event_id)
               AND NOT EXISTS (SELECT FROM operator_event_links l WHERE l.event_id = o.id)""",
    ),
    Invariant(
        "E3",
        "A job that a checkpoint covers has the history that was signed, or retention has deleted it.",
        """SELECT c.job_ulid FROM evidence_checkpoint_jobs c LEFT JOIN runtime_jobs j USING (job_ulid)
            WHERE CASE WHEN j.id IS NULL THEN c.deleted_at IS NULL
                       ELSE j.finished_at IS NULL OR (j.event_seq, j.event_head) <> (c.seq, c.head) END""",
    ),
    Invariant(
        "E4",
        "Each ended job up to the position of the checkpoints is in one of them.",
        f"""SELECT e.job_ulid FROM runtime_job_events e JOIN evidence_positions p ON p.name = '{CHECKPOINTS}'
             WHERE e.to_state IN ({listed(FINAL_STATES)}) AND (e.xid, e.id) <= (p.stamp, p.event_id)
               AND NOT EXISTS (SELECT FROM evidence_checkpoint_jobs c WHERE c.job_ulid = e.job_ulid)""",
    ),
    Invariant(
        "E5",
        "The checkpoints of an organization have the numbers 1 to n, and its chain names the last one.",
        f"""SELECT {_CHAIN} || ' #' || checkpoints FROM evidence_chains c
             WHERE checkpoint_sha256 <> coalesce((SELECT sha256 FROM evidence_checkpoints k
                                                   WHERE k.org_slug = c.org_slug AND k.number = c.checkpoints), '')
                OR checkpoints <> (SELECT count(*) FROM evidence_checkpoints k WHERE k.org_slug = c.org_slug)
           UNION
           SELECT {_CHAIN} || ' #' || number FROM
                  (SELECT org_slug, number, lag(number, 1, 0::bigint) OVER (PARTITION BY org_slug ORDER BY number)
                          AS before FROM evidence_checkpoints) numbered
            WHERE number <> before + 1
               OR NOT EXISTS (SELECT FROM evidence_chains c WHERE c.org_slug = numbered.org_slug)""",
    ),
)
