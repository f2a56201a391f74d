"""Tokens of the image registry, for docker clients."""
