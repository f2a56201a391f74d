"""The context of a run: what the command line knows about the repository and the machine, by keys of Bencher."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from runtime_jobs.resource_names import MAX_SLUG_LENGTH, slugify

_PREFIX = "bencher.dev/v0/"
_SHORT_HASH = 7
_SHORT_FINGERPRINT = 8
_GIT_HASH = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class RunContext:
    """The context of a run. Every value is optional, and unknown keys are ignored."""

    values: Mapping[str, str]

    @property
    def name(self) -> str | None:
        """The name of the repository, by which a new project is named."""
        return self._get("repo/name")

    @property
    def slug(self) -> str | None:
        """The slug of the project of this repository on this machine, or None without the name of the repository.

        The hash of the first commit and the fingerprint of the machine distinguish repositories of the same name.
        """
        if self.name is None:
            return None
        parts = [(self._get("repo/hash") or "")[:_SHORT_HASH], self._get("testbed/fingerprint") or ""]
        parts[1] = slugify(parts[1])[:_SHORT_FINGERPRINT] if parts[1] else ""
        suffix = "".join(f"-{slugify(part)}" for part in parts if part)
        return slugify(self.name)[: MAX_SLUG_LENGTH - len(suffix)].rstrip("-") + suffix

    @property
    def branch(self) -> str | None:
        """The name of the branch."""
        return self._get("branch/ref/name")

    @property
    def git_hash(self) -> str | None:
        """The commit of the branch, if it is a complete hash."""
        commit = self._get("branch/hash") or ""
        return commit if _GIT_HASH.fullmatch(commit) else None

    @property
    def operating_system(self) -> str | None:
        """The operating system of the machine, by which a testbed is named."""
        return self._get("testbed/os")

    def _get(self, key: str) -> str | None:
        return self.values.get(_PREFIX + key, "").strip() or None
