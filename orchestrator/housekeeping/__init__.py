"""Slow work away from requests and from the scheduler process: rows that any number of processes execute.

`registry` declares the kinds of tasks, `queue` stores and claims them, `process` executes them. `catalogue` lists the
modules with tasks. A task may be executed twice, after a process was killed or has stalled; each one must permit that.
"""
