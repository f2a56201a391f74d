"""Names and slugs of the Bencher API.

A name is any text of at most 64 bytes, and is not unique. A slug is unique: lower-case letters and digits of ASCII, in
groups that one hyphen separates.
"""

import re
import secrets
import string
import unicodedata

MAX_NAME_BYTES = 64
MAX_SLUG_LENGTH = 64
_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_OTHERS = re.compile(r"[^a-z0-9]+")
_BASE_36 = string.digits + string.ascii_lowercase
_SUFFIX_LENGTH = 8


def validate_resource_name(text: str) -> str | None:
    """Return what is wrong with a name, or None."""
    if text != text.strip():
        return "Must not begin or end with blanks."
    if not 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES:
        return f"Must have 1 to {MAX_NAME_BYTES} bytes in UTF-8."
    return None


def validate_slug(text: str) -> str | None:
    """Return what is wrong with a slug, or None."""
    if is_slug(text):
        return None
    return f"Must be lower-case letters, digits and single hyphens between them, at most {MAX_SLUG_LENGTH}."


def is_slug(text: str) -> bool:
    """Return whether a text is a slug: `slugify` would not change it."""
    return len(text) <= MAX_SLUG_LENGTH and _SLUG.fullmatch(text) is not None


def slugify(name: str) -> str:
    """Return the slug of a name. A name without any letter or digit of ASCII has a random one."""
    ascii_text = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return _OTHERS.sub("-", ascii_text).strip("-")[:MAX_SLUG_LENGTH].rstrip("-") or _random_text()


def with_random_suffix(slug: str) -> str:
    """Return a slug with a random suffix, for one that is taken; the slug is shortened if it must be."""
    return f"{slug[: MAX_SLUG_LENGTH - _SUFFIX_LENGTH - 1].rstrip('-')}-{_random_text()}"


def _random_text() -> str:
    return "".join(secrets.choice(_BASE_36) for _ in range(_SUFFIX_LENGTH))
