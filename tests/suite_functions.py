"""SQL functions in a schema of the test database, for what most tests ask: is every invariant kept, is every row as before.

PostgreSQL plans the statements of a function once in a session, and they are many: for the few rows of a test, planning
them takes longer than executing them.
"""

from collections.abc import Iterable

from django.apps import apps
from django.db import connection

from orchestrator.audit import runner
from orchestrator.audit.invariants import INVARIANTS

# `last_seen_at` of a worker may change with any call it makes, also with one that is refused.
_NOT_COMPARED = "last_seen_at"
# How many jobs an organization may still submit, and how many requests a client has sent, is counted also by a request
# that is refused. A process reports its open channels by itself.
_COUNTED = {"submit_quotas", "throttle_windows", "runner_channels"}
# Functions that change nothing see one snapshot, that of the statement that calls them.
_CREATE = """
CREATE SCHEMA IF NOT EXISTS suite;
CREATE OR REPLACE FUNCTION suite.broken_invariants() RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
BEGIN
{invariants}
END $$;
CREATE OR REPLACE FUNCTION suite.images() RETURNS TABLE (name text, image text) LANGUAGE plpgsql STABLE AS $$
BEGIN
{tables}
END $$;
"""


def install() -> None:
    """Create the functions, or replace those of an earlier run."""
    invariants = "\n".join(
        f"IF EXISTS (SELECT FROM ({rule.broken}) q) THEN RETURN NEXT '{rule.code}'; END IF;" for rule in INVARIANTS
    )
    row = f"(to_jsonb(t) - '{_NOT_COMPARED}')::text"
    names = sorted({model._meta.db_table for model in apps.get_models()} - _COUNTED)
    tables = "\n".join(
        f"RETURN QUERY SELECT '{table}', string_agg({row}, E'\\n' ORDER BY {row}) FROM \"{table}\" t;"
        for table in names
    )
    with connection.cursor() as cursor:
        cursor.execute(_CREATE.format(invariants=invariants, tables=tables))


def images() -> dict[str, str]:
    """Return each table's rows as one text."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM suite.images()")
        return dict(cursor.fetchall())


def audit_findings(*, chains: bool = False) -> list[str]:
    """Return what `run_audit` finds, by its own words."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT suite.broken_invariants()")
        is_broken = cursor.fetchone() is not None
    found: Iterable[runner.AuditFinding] = ()
    if is_broken:
        found = runner.run_audit(chains=chains)
    elif chains:
        found = runner._broken_chains()
    return [str(finding) for finding in found]
