"""Limits of memory, processes, processor and disk, and their measurement."""
