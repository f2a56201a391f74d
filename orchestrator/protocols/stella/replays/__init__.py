"""Replays of jobs: `/api/jobs/{id}/replay`, and the manifests that they are compared by."""
