"""Measures the SQL of a claim from pgbench: the rate of PostgreSQL on this machine without a program before it.

The script is a claim that was recorded: one statement, the call of `claim_v2`. Only what differs from claim to claim is
put in anew: the worker, the ids of the lease and the events. So it stays the product's own SQL when that changes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence

from django.db import connection
from django.test.utils import CaptureQueriesContext

from benchmarks.environment import OURS, Stage
from benchmarks.tenants import FIRST_WORKER

LITERAL = re.compile(r"(E?)'((?:[^']|'')*)'")
NEW_ID = "substr(md5(random()::text), 1, 26)"
# A job's and a worker's number are like no other number in the SQL, and their public ids end with the same digits.
MOVING = (
    (re.compile(r"(?<!\d)7\d{8}(?!\d)|(?<=0)7\d{8}(?!\d)"), ":job::text"),
    (re.compile(r"(?<!\d)8\d{8}(?!\d)|(?<=0)8\d{8}(?!\d)"), ":worker::text"),
    (re.compile(r"(?<=rtl_)[0-9a-z]{26}|(?<=evt_)[0-9a-z]{26}"), NEW_ID),
)


class PgbenchFailed(Exception):
    """`str()` has what it wrote."""


def recorded(claim: Callable[[], object], workers: int) -> list[str]:
    """Record what `claim` sends as a script for pgbench in prepared mode, for any of the first `workers`.

    The waiting jobs have to be copies of one, all with the same events; the first is claimed away, because it is none.
    """
    claim()
    with CaptureQueriesContext(connection) as seen:
        claim()
    statements = [_moving(str(query["sql"])) for query in seen.captured_queries]
    if [statement for statement in statements if "claim_v2(" in statement] != statements:
        raise PgbenchFailed("the claim that was recorded is not one call of claim_v2")
    choice = f"\\set worker random({FIRST_WORKER}, {FIRST_WORKER + workers - 1})"
    return [choice, *(f"{statement};" for statement in statements)]


def claims(stage: Stage, script: Sequence[str], *, clients: int, seconds: float) -> float:
    """Claims a second of one job each, every one a transaction. Raises PgbenchFailed."""
    file = stage.logs / "claim.sql"
    file.write_text("\n".join(script) + "\n")
    told = subprocess.run(
        [
            *(stage.programs / "pgbench", "--no-vacuum", "--protocol=prepared", "--jobs=1", "--max-tries=3"),
            *(f"--client={clients}", f"--time={max(1, round(seconds))}", f"--file={file}"),
            *(f"--host={stage.socket}", "--username=orchestrator", OURS),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + 60,
    )
    found = re.search(r"^tps = ([\d.]+)", told.stdout, re.MULTILINE)
    if told.returncode or found is None:
        raise PgbenchFailed((told.stderr.strip() or told.stdout.strip())[-500:])
    return float(found[1])


def _moving(sql: str) -> str:
    """One line, with what moves as variables."""
    parts, end = [], 0
    line = sql.replace("\n", " ")
    for literal in LITERAL.finditer(line):
        parts += [_numbers(line[end : literal.start()]), _text(literal[1], literal[2])]
        end = literal.end()
    return "".join([*parts, _numbers(line[end:])])


def _numbers(code: str) -> str:
    for pattern, name in MOVING[:2]:
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
