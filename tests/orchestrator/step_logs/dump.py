"""A dump of the test database by the real `pg_dump`, and the search for secrets in it."""

import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.management import client_programs

WINDOW = 10  # bytes; a shorter piece of a random text may be there by chance
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}  # of COPY; any other character is itself


def dumped(file: Path) -> bytes:
    """Return a dump of all tables: its text, the text without escapes, and each value of bytes that has digits there."""
    client_programs.run("pg_dump", "--format=plain", "--data-only", f"--file={file}")
    text = file.read_bytes()
    plain = re.sub(rb"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)
    values = (bytes.fromhex(digits.decode()) for digits in re.findall(rb"\\x((?:[0-9a-f]{2})+)", text))
    return b"\n".join([text, plain, *values])


def revealed(content: bytes, secrets: dict[str, bytes]) -> list[str]:
    """Return the names of the secrets of which the content has a piece of WINDOW bytes."""
    return sorted(name for name, secret in secrets.items() if any(piece in content for piece in _pieces(secret)))


def _pieces(secret: bytes) -> Iterator[bytes]:
    for start in range(max(1, len(secret) - WINDOW + 1)):
        yield secret[start : start + WINDOW]
