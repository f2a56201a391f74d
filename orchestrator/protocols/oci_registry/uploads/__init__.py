"""Uploads of blobs to a repository."""
