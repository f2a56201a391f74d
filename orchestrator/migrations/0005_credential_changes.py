"""Notify all web processes of changes of what `orchestrator.core.principal_cache` keeps.

The triggers fire for each statement that could change what a token permits, whoever sends it.
"""

from django.db import migrations

# Columns of a worker that no principal contains, or that claims write, are absent:
# `tests/orchestrator/http/test_principal_cache.py` names them.
CREATE = """
CREATE FUNCTION notify_credentials() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('credentials', '');
    RETURN NULL;
END $$;

CREATE TRIGGER credentials_changed AFTER UPDATE OR DELETE ON runtime_jobs_apitoken
    FOR EACH STATEMENT EXECUTE FUNCTION notify_credentials();
CREATE TRIGGER credentials_changed AFTER UPDATE OF slug ON runtime_jobs_organization
    FOR EACH STATEMENT EXECUTE FUNCTION notify_credentials();
CREATE TRIGGER credentials_changed AFTER UPDATE ON workers_pool
    FOR EACH STATEMENT EXECUTE FUNCTION notify_credentials();
CREATE TRIGGER credentials_changed
    AFTER UPDATE OF worker_id, slug, pool_id, digest, certificate_subject, capacity, labels, capabilities, state
        OR DELETE ON workers_worker
    FOR EACH STATEMENT EXECUTE FUNCTION notify_credentials();
"""
DROP = """
DROP TRIGGER credentials_changed ON runtime_jobs_apitoken;
DROP TRIGGER credentials_changed ON runtime_jobs_organization;
DROP TRIGGER credentials_changed ON workers_pool;
DROP TRIGGER credentials_changed ON workers_worker;
DROP FUNCTION notify_credentials;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("orchestrator", "0004_runs_of_leases"),
        ("runtime_jobs", "0004_labels"),
        ("workers", "0004_pool_aging"),
    ]

    operations = [migrations.RunSQL(CREATE, DROP)]
