"""The null engine is strict: it refuses unknown words, and cannot be used outside of tests."""

import pytest

from tests.workers.engines.conftest import Bench
from workers.engines import engine_named
from workers.engines.contract import EngineUnavailable, Isolation, NetworkRecord, RunLimits, SandboxFailed
from workers.engines.null import FLAG, NullEngine


@pytest.fixture
def bench(monkeypatch, base):
    monkeypatch.setenv(FLAG, "1")
    return Bench(engine_named("null"), base)


@pytest.mark.parametrize("value", [None, "", "0", "true"])
def test_it_cannot_be_made_outside_tests(monkeypatch, value):
    monkeypatch.delenv(FLAG, raising=False)
    if value is not None:
        monkeypatch.setenv(FLAG, value)
    with pytest.raises(EngineUnavailable, match="for tests only"):
        engine_named("null")


def test_it_isolates_nothing_and_says_so(bench):
    assert NullEngine.isolation is Isolation.NONE
    assert not Isolation.NONE.satisfies(Isolation.RESTRICTED)
    assert bench.engine.owner(0) is None
    assert bench.run("null").result.enforced_layers == ()


@pytest.mark.parametrize(
    "words", [("sh", "-c", "true"), ("null", "rm=/"), ("null", "Print=x"), ("null", "exit=3", "bogus")]
)
def test_what_it_does_not_know_is_an_error(bench, words):
    with pytest.raises(ValueError, match="not a command for the null engine"):
        bench.run(*words)


def test_it_raises_what_engines_raise(bench):
    with pytest.raises(EngineUnavailable):
        bench.run("null", "unavailable")
    with pytest.raises(SandboxFailed):
        bench.run("null", "sandbox-failed")


def test_words_are_obeyed_in_order(bench):
    run = bench.run("null", "print=one", "print=two=2", "exit=7", "print=three")
    assert (run.output, run.result.exit_code) == ("one\ntwo=2\n", 7)


def test_it_ends_as_requested(bench):
    assert bench.run("null", "kind=out_of_memory").kind == "out_of_memory"
    assert bench.run("null", "signal=SIGABRT").result.signal == "SIGABRT"


def test_it_hands_on_a_trace(bench, tmp_path):
    path = tmp_path / "trace"
    path.write_text("1 1.0 execve() = 0\n2 1.0 openat() = 3\n")
    run = bench.run("null", f"trace={path}", limits=RunLimits(trace_bytes=25))
    assert run.trace == "1 1.0 execve() = 0\n"
    assert run.result.trace_truncated


def test_it_tells_of_a_network(bench):
    run = bench.run("null", "network=pypi.example:allowed")
    assert run.result.network == (NetworkRecord("pypi.example", 443, "allowed"),)


def test_a_slot_is_free_again_after_an_error(bench):
    with pytest.raises(EngineUnavailable):
        bench.run("null", "unavailable")
    assert bench.run("null").kind == "exited"
