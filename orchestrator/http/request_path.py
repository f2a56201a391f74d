"""Corrects the path of a request before anything reads it: routes, limits by path, errors and logs."""

from typing import Final

# Bencher's command line sends `//v0/…`: it appends a path to an address that ends with a slash, and its own server
# ignores empty segments. Other prefixes stay: a rule of a proxy for `/admin` must hold for every spelling of it.
DOUBLED_PREFIX: Final = "//v0/"


def corrected_path(path: str) -> str:
    """Return the path without the doubled slash at its beginning."""
    return path[1:] if path.startswith(DOUBLED_PREFIX) else path
