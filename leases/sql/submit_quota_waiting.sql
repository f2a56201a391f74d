-- How many jobs of the organization wait: queued ones by their lanes, each from its bound, and blocked ones.
CREATE OR REPLACE FUNCTION submit_quota_waiting(p_org text) RETURNS integer
LANGUAGE sql VOLATILE SET enable_seqscan = off AS $$
    SELECT ((SELECT count(*)
               FROM lane_queues q
               JOIN lanes l ON l.queue_id = q.id AND l.head_id IS NOT NULL
               JOIN runtime_jobs j ON j.lane_id = l.id AND j.state = 'queued' AND j.id >= l.scan_from
              WHERE q.org_slug = p_org)
          + (SELECT count(*) FROM runtime_jobs WHERE org_slug = p_org AND state = 'blocked'))::integer
$$;
