"""Tokens, words, waits, failpoints, signals: parts that need a few lines each."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.workers.agent.conftest import TOKEN
from tests.workers.agent.scripted import wait_until
from workers.agent import failpoints, signals
from workers.agent.credentials import TokenFile
from workers.agent.errors import RequestRefused, ServerUnreachable, WorkerStartError
from workers.agent.retry import Backoff, RetryBudget, retry
from workers.agent.sanitize import counted, one_line, scrubbed


class TestToken:
    def test_the_first_line_is_the_token_and_the_second_the_worker(self, token_file: Path) -> None:
        token = TokenFile(token_file)
        assert token.current() == TOKEN
        assert token.worker_id == "wrk_01jworker"
        assert TOKEN not in repr(token)

    def test_a_file_that_others_may_read_is_warned_about(
        self, token_file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        TokenFile(token_file)
        assert caplog.text == ""
        token_file.chmod(0o644)
        TokenFile(token_file)
        assert "chmod 600" in caplog.text
        assert TOKEN not in caplog.text

    @pytest.mark.parametrize("content", [b"", b"\n", b"two words\n", b"\xff\xfe", b"a\x00b\n"])
    def test_what_cannot_be_a_token_is_refused_unsaid(self, token_file: Path, content: bytes) -> None:
        token_file.write_bytes(content)
        with pytest.raises(WorkerStartError) as caught:
            TokenFile(token_file)
        assert "two words" not in str(caught.value)

    def test_a_missing_file_is_refused_in_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(WorkerStartError, match="cannot read the token file"):
            TokenFile(tmp_path / "none")

    def test_a_refused_token_is_kept_while_its_file_is_gone(
        self, token_file: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        token = TokenFile(token_file)
        token_file.unlink()
        token.reload()
        assert token.current() == TOKEN
        assert "not readable again" in caplog.text


class TestWords:
    def test_no_control_character_and_no_second_line_is_left(self) -> None:
        assert one_line("a\nb\x1b[31m\tc\x00\u2028d\u202ee") == "a b [31m c d e"

    def test_what_is_too_long_ends_with_a_mark(self) -> None:
        assert one_line("x" * 50, 10) == "x" * 9 + "…"

    def test_capabilities_never_pass(self) -> None:
        assert one_line("lease rtl_01abc with rto_worker_x-y-z.") == "lease rtl_… with rto_…."

    def test_the_longest_of_what_is_hidden_goes_first(self) -> None:
        assert scrubbed("at /srv/mirror/acme", [("/srv", "A"), ("/srv/mirror", "B")]) == "at B/acme"

    def test_numbers_have_their_noun(self) -> None:
        assert (counted(1, "byte"), counted(1234, "byte")) == ("1 byte", "1,234 bytes")


class TestWaits:
    def test_they_grow_to_their_bound_and_never_vanish(self) -> None:
        backoff = Backoff(first=1, max_seconds=8)
        waits = [backoff.next() for _ in range(200)]
        assert all(0.25 <= wait <= 1 for wait in waits[:1])
        assert all(2 <= wait <= 8 for wait in waits[4:])
        assert len(set(waits)) > 100
        backoff.reset()
        assert backoff.next() <= 1

    def test_what_the_server_asks_for_counts_up_to_a_minute(self) -> None:
        assert Backoff().next(20) == 20
        assert Backoff().next(3600) == 60

    def test_insisting_repeats_what_nobody_answered_and_nothing_else(self) -> None:
        calls = []

        def call() -> str:
            calls.append(1)
            if len(calls) < 3:
                raise ServerUnreachable("away")
            return "heard"

        assert retry(call, budget=lambda seconds: True) == "heard"

        def refuse() -> None:
            calls.append(1)
            raise RequestRefused(400, "invalid", "")

        calls.clear()
        with pytest.raises(RequestRefused):
            retry(refuse, budget=lambda seconds: True)
        assert len(calls) == 1

    def test_insisting_ends_when_there_is_no_more_time(self) -> None:
        def call() -> None:
            raise ServerUnreachable("away")

        with pytest.raises(ServerUnreachable):
            retry(call, budget=RetryBudget(threading.Event(), 0.1), backoff=Backoff(first=0.01))

    def test_a_pause_ends_at_once_when_it_is_over(self) -> None:
        over = threading.Event()
        threading.Timer(0.1, over.set).start()
        begun = time.monotonic()
        assert RetryBudget(over)(60) is False
        assert time.monotonic() - begun < 5


class TestFailpoints:
    def test_nothing_is_armed_outside_tests(self) -> None:
        assert failpoints.armed({"ORCH_FP": "worker.claimed=kill"}) == {}
        assert failpoints.armed({"ORCH_FP": "worker.claimed=kill", "ORCH_TEST": "0"}) == {}
        assert failpoints.armed({"ORCH_TEST": "1"}) == {}
        failpoints.failpoint("worker.claimed")

    def test_several_are_armed_by_name(self) -> None:
        assert failpoints.armed({"ORCH_FP": "a=kill,b=stop:3", "ORCH_TEST": "1"}) == {"a": "kill", "b": "stop:3"}

    @staticmethod
    def passed(action: str) -> subprocess.CompletedProcess[bytes]:
        script = "from workers.agent.failpoints import failpoint; failpoint('other'); print('before', flush=True); failpoint('here'); print('after')"
        environment = os.environ | {"ORCH_TEST": "1", "ORCH_FP": f"here={action}"}
        return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)

    def test_kill_kills(self) -> None:
        done = self.passed("kill")
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"before\n")

    def test_raise_raises(self) -> None:
        done = self.passed("raise")
        assert done.returncode == 1
        assert b"FailpointReached: here" in done.stderr

    @pytest.mark.parametrize("action", ["stop:1", "sleep:1"])
    def test_stop_and_sleep_take_their_time_and_go_on(self, action: str) -> None:
        begun = time.monotonic()
        assert self.passed(action).stdout == b"before\nafter\n"
        assert time.monotonic() - begun >= 1

    def test_an_unknown_action_is_an_error_of_the_test(self) -> None:
        assert b"kill, stop:SECONDS" in self.passed("explode").stderr


class TestSignals:
    def test_the_first_drains_and_every_further_one_stops(self) -> None:
        heard: list[str] = []
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        with signals.handled(lambda: heard.append("first"), lambda: heard.append("second")):
            for number, expected in ((signal.SIGTERM, 1), (signal.SIGINT, 2), (signal.SIGTERM, 3)):
                os.kill(os.getpid(), number)
                wait_until(lambda expected=expected: len(heard) == expected)
        assert heard == ["first", "second", "second"]
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    def test_a_signal_does_not_break_what_the_main_thread_waits_for(self) -> None:
        heard: list[float] = []
        with signals.handled(*[lambda: heard.append(time.monotonic())] * 2):
            for seconds in (0.4, 4, 40):  # longer if the machine was too busy to send the signal within the wait
                heard.clear()
                timer = threading.Timer(seconds / 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
                timer.start()
                begun = time.monotonic()
                time.sleep(seconds)
                assert time.monotonic() - begun >= seconds
                timer.join()
                wait_until(lambda: heard)
                if begun < heard[0] < begun + seconds:
                    break
            else:
                pytest.fail("no signal came within a wait")


def test_urllib3_says_nothing_because_its_lines_hold_paths() -> None:
    assert not logging.getLogger("urllib3.connectionpool").isEnabledFor(logging.WARNING)
