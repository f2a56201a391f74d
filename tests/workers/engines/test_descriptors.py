"""Descriptors of the worker: a job must not make it leak any."""

import gc
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from workers.engines.contract import EgressPolicy, StopSignal

EGRESS = EgressPolicy(("example.test",))


def descriptors():
    """Return what this process has open of the kinds that a sandbox gives to it, with their numbers.

    Other tests may have left a connection that the pool closes meanwhile, so only new ones count.
    """
    gc.collect()
    found: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        try:
            name = str(link.readlink())
        except FileNotFoundError:
            continue
        if name.startswith(("socket:", "anon_inode:seccomp")):
            found[name] += 1
    return found


def test_a_command_that_does_not_exist_leaves_no_descriptor(bench):
    before = descriptors()
    for _ in range(3):
        assert bench.run("no-such-command", egress=EGRESS).kind == "not_found"
    assert descriptors() - before == Counter()


def test_a_job_that_is_stopped_while_it_starts_leaves_no_descriptor(bench):
    bench.sh("true")
    before = descriptors()
    for delay in range(5, 60, 5):
        stop = StopSignal()
        threading.Timer(delay / 1000, lambda stop=stop: stop.request(now=True)).start()
        bench.sh("sleep 1", stop=stop, egress=EGRESS)
    assert descriptors() - before == Counter()


@pytest.mark.skipif(os.geteuid() != 0, reason="the self-test of an ordinary user is the same")
def test_the_self_test_leaves_no_descriptor(engines):
    for engine in engines.values():
        before = descriptors()
        assert engine.check().missing == ()
        assert descriptors() - before == Counter()
