"""Digests of blobs and manifests: `sha256:…` or `sha512:…`, in lower-case hexadecimal digits."""

import hashlib
from dataclasses import dataclass
from typing import IO, Any, Final

from runtime_jobs.specs.oci import IMAGE_DIGEST

MAX_DIGEST_LENGTH: Final = 136
HASHED_BYTES: Final = 1 << 20  # a block; hashlib releases the interpreter's lock meanwhile


class InvalidDigest(ValueError):
    """The text is no digest of a supported algorithm."""


class DigestMismatch(ValueError):
    """The content has another digest than the client declared."""


@dataclass(frozen=True)
class Digest:
    """A digest whose form has been checked: its parts are safe in names of files."""

    algorithm: str
    hex: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.hex}"

    @classmethod
    def parse(cls, text: str) -> "Digest":
        """Return the digest that a text denotes.

        Raises:
            InvalidDigest: The text is none.
        """
        if not IMAGE_DIGEST.fullmatch(text):
            raise InvalidDigest("A digest is sha256: and 64, or sha512: and 128 lower-case hex digits.")
        algorithm, _, digits = text.partition(":")
        return cls(algorithm, digits)

    @classmethod
    def of(cls, content: bytes, algorithm: str = "sha256") -> "Digest":
        """Return the digest of some bytes."""
        return cls(algorithm, hashlib.new(algorithm, content).hexdigest())

    def hasher(self) -> Any:
        """Return a new hash object of the algorithm."""
        return hashlib.new(self.algorithm)


def update_from_file(hasher: Any, file: IO[bytes], copy: IO[bytes] | None = None) -> int:
    """Feed a file to a hash object, and optionally to another file. Return the number of bytes.

    Args:
        hasher: The hash object.
        file: The file, which is read to its end.
        copy: A file that gets the same bytes.
    """
    size = 0
    while block := file.read(HASHED_BYTES):
        hasher.update(block)
        if copy is not None:
            copy.write(block)
        size += len(block)
    return size
