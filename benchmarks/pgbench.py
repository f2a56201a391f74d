"""Runs scripts by pgbench: a recorded claim of the product, and what `minimal` provides.

pgbench gives the rate of PostgreSQL on this machine without a program before it. The recorded claim is what the product
sent: one call of its SQL function. Only what differs from claim to claim is replaced: the worker, and the ids of the
leases and the events. So it stays the product's own SQL when that changes.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.db import connection
from django.test.utils import CaptureQueriesContext

from benchmarks.environment import OURS, Cluster
from benchmarks.tenants import FIRST_WORKER

CLAIM = re.compile(r"\bclaim\(")  # the SQL function of a claim
LITERAL = re.compile(r"(E?)'((?:[^']|'')*)'")
NEW_ID = "substr(md5(random()::text), 1, 26)"
# A worker's number is like no other number in the SQL, and its public id ends with the same digits.
MOVING = (
    (re.compile(r"(?<!\d)8\d{8}(?!\d)|(?<=0)8\d{8}(?!\d)"), ":worker::text"),
    (re.compile(r"(?<=rtl_)[0-9a-z]{26}|(?<=evt_)[0-9a-z]{26}"), NEW_ID),
)


class PgbenchFailed(Exception):
    """Reports the error that pgbench has written."""


@dataclass(frozen=True)
class PgbenchResult:
    """Holds what pgbench reports at its end."""

    per_second: float
    transactions: int


def recorded(claim: Callable[[], object], workers: int) -> list[str]:
    """Return a script for pgbench in prepared mode of what `claim` sends, for any of the first `workers`.

    The waiting jobs have to be copies of one, all with the same events; the first is claimed away, because it is none.

    Raises:
        PgbenchFailed: The claim is not one call of its SQL function.
    """
    claim()
    with CaptureQueriesContext(connection) as seen:
        claim()
    return script_of([str(query["sql"]) for query in seen.captured_queries], workers)


def script_of(queries: Sequence[str], workers: int) -> list[str]:
    """Return the script of these queries; see `recorded`."""
    statements = [_moving(query) for query in queries]
    if not statements or not all(CLAIM.search(statement) for statement in statements):
        raise PgbenchFailed("the claim that was recorded is not one call of its SQL function")
    choice = f"\\set worker random({FIRST_WORKER}, {FIRST_WORKER + workers - 1})"
    return [choice, *(f"{statement};" for statement in statements)]


def run(
    cluster: Cluster, script: Sequence[str], *, name: str, clients: int, seconds: float, database: str = OURS
) -> PgbenchResult:
    """Run the script for that long; each run of it is a transaction unless it has several statements.

    Raises:
        PgbenchFailed: pgbench reports an error.
    """
    command = _command(cluster, _written(cluster, name, script), clients, seconds, database)
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 60)
    return parsed(ended.stdout, ended.stderr, ended.returncode)


@contextlib.contextmanager
def running(
    cluster: Cluster, script: Sequence[str], *, name: str, clients: int, seconds: float, database: str
) -> Iterator[int]:
    """Run the script while the block runs, which gets the process id of the first client's backend.

    Raises:
        PgbenchFailed: pgbench reports an error, or has no backend.
    """
    command = _command(cluster, _written(cluster, name, script), clients, seconds, database)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield _backend(cluster, database)
            out, err = process.communicate(timeout=seconds + 60)
        finally:
            process.kill()
    parsed(out, err, process.returncode)


def _written(cluster: Cluster, name: str, script: Sequence[str]) -> Path:
    file = cluster.logs / f"{name}.pgbench"  # not SQL: it has commands of pgbench
    file.write_text("\n".join(script) + "\n")
    return file


def _backend(cluster: Cluster, database: str) -> int:
    query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'pgbench' ORDER BY pid LIMIT 1"
    until = time.monotonic() + 10
    time.sleep(0.5)  # its first connection only reads the catalog and is closed
    with cluster.superuser() as superuser:
        while time.monotonic() < until:
            row = superuser.execute(query, [database]).fetchone()
            if row:
                return int(row[0])
            time.sleep(0.02)
    raise PgbenchFailed("pgbench has no connection")


def parsed(out: str, err: str, code: int | None) -> PgbenchResult:
    """Return the result that pgbench has printed.

    Raises:
        PgbenchFailed: It has printed none, or ended with an error.
    """
    rate = re.search(r"^tps = ([\d.]+)", out, re.MULTILINE)
    number = re.search(r"^number of transactions actually processed: (\d+)", out, re.MULTILINE)
    if code or rate is None or number is None:
        raise PgbenchFailed((err.strip() or out.strip())[-500:])
    return PgbenchResult(float(rate[1]), int(number[1]))


def _command(cluster: Cluster, file: Path, clients: int, seconds: float, database: str) -> list[str]:
    return [
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *(str(cluster.programs / "pgbench"), "--no-vacuum", "--protocol=prepared", "--jobs=1", "--max-tries=3"),
        *(f"--client={clients}", f"--time={max(1, round(seconds))}", f"--file={file}"),
        *(f"--host={cluster.socket}", "--username=orchestrator", database),
    ]


def _moving(sql: str) -> str:
    """One line, with what moves as variables."""
    parts, end = [], 0
    line = sql.replace("\n", " ")
    for literal in LITERAL.finditer(line):
        parts += [_numbers(line[end : literal.start()]), _text(literal[1], literal[2])]
        end = literal.end()
    return "".join([*parts, _numbers(line[end:])])


def _numbers(code: str) -> str:
    for pattern, name in MOVING[:1]:
        code = pattern.sub(name.removesuffix("::text"), code)
    return code


def _text(prefix: str, content: str) -> str:
    """Return a literal unchanged, or with its variable parts replaced. pgbench would take a colon for a variable."""
    kept = content if prefix else content.replace("\\", "\\\\")
    pieces = [kept]
    for pattern, name in MOVING:
        pieces = [cut for piece in pieces for cut in _cut(piece, pattern, name)]
    quoted = [piece if _is_moving(piece) else "E'{}'".format(piece.replace(":", "\\x3a")) for piece in pieces]
    return f"({' || '.join(quoted)})" if len(quoted) > 1 else quoted[0]


def _cut(piece: str, pattern: re.Pattern[str], name: str) -> list[str]:
    if _is_moving(piece):
        return [piece]
    between = pattern.split(piece)
    return [part for text in between for part in (name, text)][1:]


def _is_moving(piece: str) -> bool:
    return any(piece == name for _, name in MOVING)
