"""Versions of packs: `/v1/packs`."""
