"""The trace of a job: the format of strace, its parser, and the calls that the worker answers."""
