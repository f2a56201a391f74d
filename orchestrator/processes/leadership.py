"""Elects the leading scheduler process: its term is in the row of `clock_beats`, and its beat is fresh.

A session lock cannot decide this. A stopped process keeps its session and with it the lock, and so does a process whose
connection was returned to a pool. Here a stand-by takes over from a leader without a fresh beat and ends its session:
what the former leader had not committed is rolled back, and its row locks are free.

Two processes that both assume to lead do no harm. Every task locks the rows that it changes and checks under that lock
whether the change is still due (`services.expire` and its siblings), so a second process finds nothing to do.
"""

import logging
from typing import Any

from django.db import DatabaseError, connection

log = logging.getLogger(__name__)

ROW = 1

_READ_LEADER = """
SELECT term, leader, released_at IS NOT NULL,
       beat_at < clock_timestamp() - make_interval(secs => %(takeover)s),
       backend_pid IS NOT NULL AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = backend_pid
           AND (a.backend_start = backend_started_at OR a.backend_start IS NULL))
  FROM clock_beats WHERE id = %(row)s"""
# Only the very session that the row names, and only if it is one of this role: another process may have got its pid.
_TERMINATE = """
SELECT pg_terminate_backend(a.pid, 2000)
  FROM clock_beats b JOIN pg_stat_activity a ON a.pid = b.backend_pid AND a.backend_start = b.backend_started_at
 WHERE b.id = %(row)s AND b.term = %(term)s AND a.usename = current_user AND a.datname = current_database()
   AND a.pid <> pg_backend_pid()"""
_MINE = """
backend_pid = pg_backend_pid(), beat_at = clock_timestamp(), released_at = NULL,
backend_started_at = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"""
_TAKE_OVER = f"""
UPDATE clock_beats SET term = term + 1, leader = %(leader)s, {_MINE}
 WHERE id = %(row)s AND term = %(term)s RETURNING term"""  # noqa: S608 our own text
# A term alone does not name its leader: terms begin anew when the row is gone, and go back with a restored backup.
_HELD = "id = %(row)s AND term = %(term)s AND leader = %(leader)s"
_RENEW = f"UPDATE clock_beats SET {_MINE} WHERE {_HELD} RETURNING term"  # noqa: S608 our own text
_RELEASE = f"UPDATE clock_beats SET released_at = clock_timestamp() WHERE {_HELD}"  # noqa: S608 our own text
_FIRST = """
INSERT INTO clock_beats (id, leader, beat_at, term, released_at)
VALUES (%(row)s, '', clock_timestamp(), 0, clock_timestamp()) ON CONFLICT (id) DO NOTHING"""


class LeadershipLost(Exception):
    """Another process has taken over."""


class Leadership:
    """This process's claim to lead. All statements are transactions of their own on Django's connection."""

    def __init__(self, name: str, *, takeover_seconds: float) -> None:
        self.name = name
        self.takeover_seconds = takeover_seconds
        self.term: int | None = None

    def hold(self) -> bool:
        """Write the beat if this process leads, else take over if no process does. Returns whether it leads now."""
        if self.term is None:
            return self._acquire()
        try:
            self.renew()
        except LeadershipLost as lost:
            log.warning("%s", lost)
            return False
        return True

    def renew(self) -> None:
        """Write the beat. Raises LeadershipLost if another process has taken over."""
        term = self.term
        if term is None or self._one(_RENEW, leader=self.name, term=term) is None:
            self.term = None
            raise LeadershipLost(f"another scheduler has taken over from {self.name} (term {term})")

    def release(self) -> None:
        """Stop leading: a stand-by takes over at its next round."""
        term, self.term = self.term, None
        if term is not None:
            with connection.cursor() as cursor:
                cursor.execute(_RELEASE, {"row": ROW, "term": term, "leader": self.name})

    def _acquire(self) -> bool:
        found = self._one(_READ_LEADER, takeover=self.takeover_seconds)
        if found is None:
            with connection.cursor() as cursor:
                cursor.execute(_FIRST, {"row": ROW})
            found = self._one(_READ_LEADER, takeover=self.takeover_seconds)
        if found is None:
            return False
        term, leader, is_released, is_silent, is_disconnected = found
        if not (is_released or is_silent or is_disconnected):
            return False
        if is_silent and not is_released:
            self._end_session(term)
        taken = self._one(_TAKE_OVER, leader=self.name, term=term)
        if taken is None:
            return False  # another stand-by was faster
        self.term = taken[0]
        cause = "released" if is_released else "disconnected" if is_disconnected else "silent"
        log.info("%s leads from now on, term %d (before: %s, %s)", self.name, self.term, leader or "none", cause)
        return True

    def _end_session(self, term: int) -> None:
        try:
            self._one(_TERMINATE, term=term)
        except DatabaseError:
            # Without that right the former leader's open transaction ends by its own timeouts.
            log.exception("the session of the silent leader could not be ended")

    def _one(self, sql: str, **values: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql, {"row": ROW, **values})
            return cursor.fetchone()
