"""Plays the life of a runner with Bencher's own, unmodified program against an installation of its own."""
