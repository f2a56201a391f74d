-- A page of sources: of each organization, the newest first, the organization itself (0), its job types (1) and its
-- projects (2), each with the pause or throttle on it that has not expired. Operators also see job types of all
-- organizations together, which come last and have neither key nor slug. `selectors/sources.py` reverses the marked
-- comparisons and orders for a page before a key.
SELECT o.id, s.rank, s.name, o.slug,
       CASE m.kind WHEN 'pause' THEN 'paused' WHEN 'throttle' THEN 'throttled' ELSE 'active' END AS status,
       m.until, coalesce(m.set_by, ''), coalesce(m.note, ''), m.set_at, m.per_hour, m.burst
  FROM (
    SELECT id, slug FROM runtime_jobs_organization
     WHERE %(organizations)s::text[] IS NULL OR slug = ANY (%(organizations)s::text[])
     UNION ALL
    SELECT 0, '' WHERE %(organizations)s::text[] IS NULL OR '' = ANY (%(organizations)s::text[])) AS o(id, slug)
 CROSS JOIN LATERAL (
    SELECT 0, '', 'organization', '*' WHERE o.slug <> ''
     UNION ALL
    SELECT 1, name, CASE o.slug WHEN '' THEN 'job_type' ELSE 'organization' END, name
      FROM unnest(%(types)s::text[]) AS type(name)
     UNION ALL
    SELECT 2, p.slug, 'project', p.slug FROM runtime_jobs_project p WHERE p.organization_id = o.id
    ) AS s(rank, name, scope, key)
  LEFT JOIN LATERAL (
    SELECT kind, until, set_by, note, set_at, per_hour, burst
      FROM lane_limits
     WHERE scope = s.scope AND org_slug = o.slug AND key = s.key AND kind IN ('pause', 'throttle')
       AND (until IS NULL OR until > clock_timestamp())
     ORDER BY kind
     LIMIT 1) AS m ON true
 WHERE (%(organization_id)s::bigint IS NULL
        OR (o.id /* beyond */ <= %(organization_id)s::bigint
            AND (-o.id, s.rank, s.name COLLATE "C") /* after */ >
                (-%(organization_id)s::bigint, %(rank)s::integer, %(name)s::text COLLATE "C")))
   AND (%(scope)s::text IS NULL OR (s.scope = %(scope)s::text AND s.key = %(key)s::text))
   AND (%(status)s::text IS NULL
        OR %(status)s::text = CASE m.kind WHEN 'pause' THEN 'paused' WHEN 'throttle' THEN 'throttled' ELSE 'active' END)
 ORDER BY o.id /* order */ DESC, s.rank /* then */ ASC, s.name COLLATE "C" /* then */ ASC
 LIMIT %(count)s
