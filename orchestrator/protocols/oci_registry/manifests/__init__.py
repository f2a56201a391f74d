"""Manifests, tags and referrers of a repository."""
