"""Versioned SQL functions: their files, the checksums that freeze them, and a comparison with what a database has.

A migration creates the functions of one version; no other code writes them. A released function that changes gets a new
version, in new files and a new migration. The release after the one that stopped calling the old version drops it.
So the processes of two releases can serve the same database, and an upgrade needs no pause. docs/adr/0104 has the
exception for a correction before the first release.
"""

import hashlib
import re
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.db import connection

DIRECTORY = Path(__file__).parent / "sql"
MIGRATION = ("leases", "0003_functions")  # creates the functions that this code calls

# SHA-256 of each file. A released file never changes: databases that ran its migration would keep the former functions.
CHECKSUMS = {
    "v1/claim.sql": "8d81a4f5a3ca0b78f9532014129007167183202da03fc44f93872794a03ec9f2",
    "v1/release.sql": "cdfdc717ea9e9149e530edf65eceee3e2903a10f1c2ecc09750c198426b981d6",
    "v1/periodic.sql": "33a8ec42a4ae4f1bcdd1b3c291c59813901fc92edc2f495ba3ad3ba6dd8cd003",
    "v1/prune.sql": "4477b4a8878be5260a37210ee4725047ffa6b4fe5f88106e66a447d5f1f8e003",
    "v1/submit_quota.sql": "57f807c82453f33200486bd141cc17b03807302b9d8d83f34858c8437f68aa40",
    "v2/claim.sql": "dacae6f8b56e0bd8f8ae23619d782a63d4ce5f3dfc396736bd03a0cdca23fb7c",
    "v2/write.sql": "96fac6dd2f3444ed812211147eff472a9a2591bae0bfc4b2da114950e532af71",
    "v3/write.sql": "ee0375df7ab6dfe91d8b1137d23390e68ae75080d19a9db7f4f865bf1f99f7e8",
}

CACHE_SECONDS = 60
_verified_at: float | None = None

_DEFINITION = re.compile(
    r"^CREATE OR REPLACE FUNCTION (?P<name>\w+)\((?P<header>.*?)AS \$\$(?P<body>.*?)\$\$", re.DOTALL | re.MULTILINE
)
_SETTING = re.compile(r"\bSET (\w+) = (\w+)")
_INSTALLED = """
SELECT p.proname, md5(p.prosrc), coalesce(array_to_string(p.proconfig, ','), '')
  FROM pg_proc p WHERE p.proname = ANY (%s) AND pg_function_is_visible(p.oid)"""


@dataclass(frozen=True)
class SqlFunction:
    """Identify one function by its name, the MD5 of its body and its settings."""

    name: str
    body_md5: str
    settings: str


def read_sql(file: str) -> str:
    """Return the text of a file in `leases/sql`, for example `v1/claim.sql`."""
    return (DIRECTORY / file).read_text()


def changed_files() -> list[str]:
    """Return the frozen files whose content differs from its checksum."""
    return [file for file, checksum in CHECKSUMS.items() if file_checksum(file) != checksum]


def file_checksum(file: str) -> str:
    """Return the SHA-256 of a file in `leases/sql`, as hexadecimal digits."""
    return hashlib.sha256((DIRECTORY / file).read_bytes()).hexdigest()


@cache
def expected_functions() -> frozenset[SqlFunction]:
    """Return the functions that this code calls, as its files define them."""
    return frozenset(
        SqlFunction(
            found["name"],
            hashlib.md5(found["body"].encode(), usedforsecurity=False).hexdigest(),
            ",".join(f"{name}={value}" for name, value in _SETTING.findall(found["header"])),
        )
        for file in CHECKSUMS
        for found in _DEFINITION.finditer(read_sql(file))
    )


def function_mismatches() -> list[str]:
    """Return the names of expected functions that the database lacks, has with another body, or has more than once."""
    expected = expected_functions()
    names = sorted(function.name for function in expected)
    with connection.cursor() as cursor:
        cursor.execute(_INSTALLED, [names])
        rows = [SqlFunction(*row) for row in cursor.fetchall()]
    installed = {function.name: function for function in rows}
    overloaded = {name for name in names if sum(row.name == name for row in rows) > 1}
    return sorted(overloaded | {function.name for function in expected if installed.get(function.name) != function})


def are_functions_current() -> bool:
    """Return whether the database has the functions that this code calls. A positive answer counts for a minute."""
    global _verified_at  # noqa: PLW0603 one cache per process; a race only compares twice
    now = time.monotonic()
    if _verified_at is not None and now - _verified_at < CACHE_SECONDS:
        return True
    _verified_at = None if function_mismatches() else now
    return _verified_at is not None


def clear_cache() -> None:
    """Let the next call of `are_functions_current` ask the database."""
    global _verified_at  # noqa: PLW0603 as above
    _verified_at = None
