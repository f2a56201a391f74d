"""Invariants of housekeeping tasks, of repositories and their mirrors, and of pinned runs."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from orchestrator.audit.invariant import Invariant
from orchestrator.repositories.mirrors import mirrored_ids
from orchestrator.repositories.tasks import MIRROR
from runtime_jobs.models import Repository

# Housekeeping executes first what has been due for the longest time. The times of the tasks are compared with one
# another, not with the clock: after a restore all of them are overdue.
PASSED_OVER: Final = "6 hours"
ORPHAN_AGE: Final = timedelta(hours=1)  # the task that deletes mirrors without a repository runs every ten minutes

HOUSEKEEPING_INVARIANTS = (
    Invariant(
        "H1",
        f"No due task waits while housekeeping executes tasks {PASSED_OVER} later.",
        f"""SELECT t.kind || ' ' || t.subject FROM housekeeping_tasks t,
              (SELECT greatest(max(succeeded_at), max(failed_at)) AS at FROM housekeeping_tasks) latest
             WHERE t.due_at < latest.at - interval '{PASSED_OVER}'
               AND (t.claimed_until IS NULL OR t.claimed_until < latest.at - interval '{PASSED_OVER}')""",
    ),
    Invariant(
        "H2",
        "A claimed task has the name of a process, and a task that is not claimed has none.",
        "SELECT kind || ' ' || subject FROM housekeeping_tasks WHERE (claimed_until IS NULL) <> (claimed_by = '')",
    ),
    Invariant(
        "H3",
        "A task that has failed has an error, and a task that waits for nothing has failed.",
        """SELECT kind || ' ' || subject FROM housekeeping_tasks
            WHERE (failures > 0) <> (last_error <> '') OR (due_at IS NULL AND failures = 0)
               OR (failures > 0 AND failed_at IS NULL)""",
    ),
    Invariant(
        "H4",
        "A repository of more than an hour has a task that updates its mirror.",
        f"""SELECT r.owner || '/' || r.name FROM repositories r
             WHERE r.created_at < clock_timestamp() - interval '1 hour'
               AND NOT EXISTS (SELECT FROM housekeeping_tasks t
                                WHERE t.kind = '{MIRROR}' AND t.subject = r.id::text)""",
    ),
    Invariant(
        "H5",
        "Artifacts of a pinned run do not expire.",
        """SELECT a.object_key FROM runtime_stored_artifacts a JOIN workflow_runs r USING (batch_id)
            WHERE r.pinned AND NOT a.is_abandoned AND a.expires_at IS NOT NULL""",
    ),
)


def orphaned_mirrors() -> Iterator[str]:
    """Yield the folders of mirrors that belong to no repository and that housekeeping has not deleted in an hour."""
    folders = mirrored_ids(min_age=ORPHAN_AGE)
    existing = set(Repository.objects.filter(pk__in=folders).values_list("pk", flat=True))
    yield from (str(number) for number in folders if number not in existing)
