-- Count from now on: the first time, and after a restore whose transactions are numbered anew.
INSERT INTO metric_place AS place (id, xid, event_id, beats_until)
VALUES (1, pg_snapshot_xmin(pg_current_snapshot()), 0, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET xid = excluded.xid, event_id = 0
 WHERE place.xid > pg_snapshot_xmax(pg_current_snapshot())
