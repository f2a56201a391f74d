"""Moves the logs of ended steps into objects of the storage, and reads a log wherever its bytes are."""
