"""Blobs of a repository."""
