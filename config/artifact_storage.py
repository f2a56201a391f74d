"""Chooses where artifacts, caches and finished logs are stored: a folder, or a bucket of S3."""

from typing import Any


def artifact_storage(folder: str, bucket: str, endpoint_url: str, region: str) -> dict[str, Any]:
    """Return an entry of `STORAGES`: the bucket, or the folder if there is none.

    The credentials of a bucket are those of boto3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or those of the
    machine. An incomplete set of settings is a system check (orchestrator.E017).
    """
    if not bucket:
        return {"BACKEND": "orchestrator.artifacts.storage.ArtifactFileStorage", "OPTIONS": {"location": folder}}
    options = {"bucket_name": bucket, "endpoint_url": endpoint_url or None, "region_name": region or None}
    return {"BACKEND": "orchestrator.artifacts.s3_storage.ArtifactS3Storage", "OPTIONS": options}
