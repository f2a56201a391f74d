"""The path of a request: its correction before anything reads it, and whether programs with tokens call it."""

import re
from typing import Final

# Bencher's command line sends `//v0/…`: it appends a path to an address that ends with a slash, and its own server
# ignores empty segments. Other prefixes stay: a rule of a proxy for `/admin` must hold for every spelling of it.
DOUBLED_PREFIX: Final = "//v0/"
API_PREFIXES: Final = ("/v0/", "/v1/", "/v2/", "/api/")
# Document 004 names these below the pages of runs for browsers, which are `/runs/` and `/runs/{id}/`.
_RUN_OF_API: Final = re.compile(r"/runs/[^/]+/(logs|artifacts|artifacts/.*|heartbeat)", re.DOTALL)


def is_api_path(path: str) -> bool:
    """Return whether programs with tokens call this path. Others are for browsers, or for probes."""
    return path.startswith(API_PREFIXES) or _RUN_OF_API.fullmatch(path) is not None


def corrected_path(path: str) -> str:
    """Return the path without the doubled slash at its beginning."""
    return path[1:] if path.startswith(DOUBLED_PREFIX) else path
