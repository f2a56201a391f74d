"""One commit of one repository, as document 000 names it."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, cast

import orjson

from runtime_jobs.models.jobs import Job


@dataclass(frozen=True)
class RepositorySource:
    """A commit of a repository. `runtime_jobs.validators` checks the values at the edge."""

    repo_url: str
    owner: str
    repo: str
    ref: str | None
    git_commit: str
    pull_request_number: int | None = None

    def columns(self) -> dict[str, Any]:
        return {
            "source_kind": "github",
            "repo_url": self.repo_url,
            "repo_owner": self.owner,
            "repo_name": self.repo,
            "git_ref": self.ref,
            "git_commit": self.git_commit,
            "pull_request_number": self.pull_request_number,
        }

    @classmethod
    def of(cls, job: Job) -> "RepositorySource":
        """Return the source that the columns of a job contain."""
        values = (job.repo_url, job.repo_owner, job.repo_name, job.git_ref, job.git_commit, job.pull_request_number)
        return cls(*cast("Any", values))

    @property
    def repository(self) -> tuple[str, str]:
        """Owner and name, as a project allows them."""
        return self.owner, self.repo.removesuffix(".git")


def source_of(job: Job) -> dict[str, Any]:
    """Return the `source` object of document 000."""
    return {
        "kind": job.source_kind,
        "repo_url": job.repo_url,
        "owner": job.repo_owner,
        "repo": job.repo_name,
        "ref": job.git_ref,
        "git_commit": job.git_commit,
        "pull_request_number": job.pull_request_number,
    }


def digest_of(request: dict[str, Any]) -> str:
    """Return the SHA-256 of a canonical request. Dataclasses in it count by their fields.

    A trace that is not asked for does not count: the digest of a request is the same as before there were levels.
    """
    request = {name: value for name, value in request.items() if name != "trace" or value is not None}
    return hashlib.sha256(_canonical(request)).hexdigest()


def _canonical(request: dict[str, Any]) -> bytes:
    """Return the request as JSON with sorted keys. Requests have no fractions, so both libraries write the same."""
    try:
        return orjson.dumps(request, default=vars, option=orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS)
    except orjson.JSONEncodeError:  # a number of more than 64 bits
        text = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=vars)
        return text.encode()
