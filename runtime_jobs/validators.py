"""Validation of repository URLs, commits, refs, folders and commands. Each function returns an error text or None."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from runtime_jobs.control_characters import wrong_label

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
PATH = re.compile(r"/([A-Za-z0-9_.-]+)/([A-Za-z0-9_.-]+?)(?:\.git)?")
# See git check-ref-format: parts that a ref may never contain.
_BAD_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)|\.$|/$|^/|^-|^\.")


def validate_repo_url(url: str, *, owner: str, repo: str, hosts: Sequence[str]) -> str | None:
    """Accept only `https://HOST/OWNER/REPO[.git]` of an allowed host, with the given owner and name.

    Git could read other forms as another transport, an option or a login.
    """
    if not url.isascii() or any(ord(c) <= 0x20 or c in "\x7f%\\?#@[]" for c in url):
        return "This is not a plain https URL of a repository."
    parts = urlsplit(url)
    if parts.scheme != "https" or not url.startswith("https://"):
        return "Only https is supported."
    if parts.netloc not in hosts:
        return f"The host must be one of: {', '.join(hosts)}."
    path = PATH.fullmatch(parts.path)
    if path is None or set(path.groups()) & {".", ".."}:
        return "The path must be /owner/name or /owner/name.git."
    if path.groups() != (owner, repo.removesuffix(".git")):
        return "Owner and name differ from the fields owner and repo."
    return None


def validate_name(name: str) -> str | None:
    """Check the name of an owner or repository."""
    if NAME.fullmatch(name) is None or name in {".", ".."} or name.startswith("-"):
        return "Letters, digits, '.', '_' and '-' only, at most 100, not starting with '-'."
    return None


def validate_commit(commit: str) -> str | None:
    """Check that a commit id is complete."""
    if COMMIT.fullmatch(commit) is None or not commit.strip("0"):
        return "A full commit id is needed: 40 or 64 lower-case hex digits."
    return None


def validate_ref(ref: str) -> str | None:
    """Check the name of a git ref."""
    if not ref or len(ref) > 255 or _BAD_IN_REF.search(ref):
        return "This is not a valid name of a git ref."
    return wrong_label(ref)


def validate_directory(directory: str) -> str | None:
    """Check that a path is relative and stays inside the checkout. The worker checks symbolic links."""
    if not directory or len(directory) > 1024 or "\0" in directory:
        return "A relative path of 1 to 1024 characters is needed."
    if directory.startswith("/") or ".." in directory.split("/"):
        return "It must stay inside the checkout."
    return wrong_label(directory)


def validate_command(command: Sequence[str]) -> str | None:
    """Check a command that is a list of arguments."""
    if not 1 <= len(command) <= 64:
        return "A command of 1 to 64 strings is needed."
    if any(len(word) > 1024 for word in command):
        return "Each string may have at most 1024 characters."
    if not command[0].strip() or any("\0" in word for word in command):
        return "The first string names a program; none may contain NUL."
    return None
