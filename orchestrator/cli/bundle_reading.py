"""Reads and verifies an audit bundle of a file, with the keys that the reader names.

The verifier is a part of the server: `tests/test_architecture.py` lists the modules that the command line may import.
It needs `cryptography`, which only the commands that read a bundle need, and is imported when one of them runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.errors import CommandFailed, ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from orchestrator.evidence.verifying import VerifiedBundle


def add_bundle_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a bundle and the keys to trust."""
    parser.add_argument("--bundle", metavar="FILE", type=Path, required=True, help="the audit bundle")
    parser.add_argument(
        "--key", metavar="FILE", dest="keys", action="append", default=[], help="public key to trust, as PEM"
    )


def read_bundle(
    options: argparse.Namespace, on_entry: Callable[[str, Mapping[str, Any]], None] | None = None
) -> VerifiedBundle:
    """Return the bundle of the options, verified.

    Args:
        options: The options of `add_bundle_options`.
        on_entry: Is called with the file and the content of each line. Nothing is proven before this function returns.

    Raises:
        CommandFailed: The bundle is not what a named key has signed, or a file cannot be read.
    """
    from orchestrator.evidence.verifying import BundleRefused, verify_bundle  # noqa: PLC0415 see above

    keys = [_public_key(name) for name in options.keys]
    try:
        with options.bundle.open("rb") as stream:
            return verify_bundle(stream, keys, on_entry=on_entry)
    except OSError as error:
        raise CommandFailed(ExitCode.NOT_FOUND, f"{options.bundle}: {error.strerror}.", code="no_file") from None
    except BundleRefused as refusal:
        raise CommandFailed(ExitCode.FAILED, f"{options.bundle}: {refusal}", code="not_verified") from None


def _public_key(name: str) -> Ed25519PublicKey:
    from orchestrator.evidence.public_keys import InvalidPublicKey, read_public_key  # noqa: PLC0415 see above

    try:
        return read_public_key(Path(name).read_bytes())
    except OSError as error:
        raise CommandFailed(ExitCode.NOT_FOUND, f"{name}: {error.strerror}.", code="no_file") from None
    except InvalidPublicKey as error:
        raise UsageError(f"{name}: {error}") from None
