"""Stored files of jobs: artifacts, caches and finalized logs, in a folder or in a bucket of S3."""
