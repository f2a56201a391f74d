"""Chooses where artifacts, caches and finalized logs are stored: a folder of STATE_DIR, or a bucket of S3."""

from pathlib import Path
from typing import Any

from config.env import Env


def artifact_storages(env: Env, state_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the entry of `STORAGES`.

    The credentials of a bucket are those of boto3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or those of the
    machine. An incomplete set of settings is a system check (orchestrator.E017).

    Args:
        env: The environment.
        state_dir: The folder of what the installation keeps.
    """
    bucket = env.str("ARTIFACTS_BUCKET", default="")
    if not bucket:
        location = env.str("ARTIFACTS_DIR", default=str(state_dir / "artifacts"))
        folder = "orchestrator.artifacts.storage.ArtifactFileStorage"
        return {"artifacts": {"BACKEND": folder, "OPTIONS": {"location": location}}}
    options = {
        "bucket_name": bucket,
        "endpoint_url": env.str("ARTIFACTS_ENDPOINT_URL", default="") or None,
        "region_name": env.str("ARTIFACTS_REGION", default="") or None,
    }
    return {"artifacts": {"BACKEND": "orchestrator.artifacts.s3_storage.ArtifactS3Storage", "OPTIONS": options}}
