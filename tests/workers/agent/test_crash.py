from __future__ import annotations

import threading

from tests.workers.agent.scripted import wait_until
from workers.agent.crash import EXIT_CODE, CrashHandler


def broken() -> None:
    raise RuntimeError("injected")


def test_jobs_that_cannot_be_stopped_end_with_the_process_at_once() -> None:
    codes: list[int] = []
    handler = CrashHandler(forced_exit_seconds=600, force_exit=codes.append)
    handler.stop_jobs_with(broken)
    handler.run(broken)
    assert codes == [EXIT_CODE]


def test_a_thread_that_failed_before_there_were_jobs_keeps_the_worker_from_claiming() -> None:
    handler = CrashHandler(forced_exit_seconds=600, force_exit=lambda _: None)
    thread = threading.Thread(target=handler.run, args=(broken,), name="heartbeat")
    thread.start()
    thread.join()
    stopped: list[bool] = []
    handler.stop_jobs_with(lambda: stopped.append(True))
    assert (stopped, handler.thread_name) == ([True], "heartbeat")


def test_a_process_whose_main_thread_hangs_is_ended_from_outside_it() -> None:
    codes: list[int] = []
    handler = CrashHandler(forced_exit_seconds=0.01, force_exit=codes.append)
    handler.run(broken)
    wait_until(lambda: codes == [EXIT_CODE])
