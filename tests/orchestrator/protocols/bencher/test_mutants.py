"""A test of the tests: with one guard removed, the named test of that guard must fail.

`tests/lease_model` does the same for the operations. Here are the guards of the protocol, of pull tokens and of the
ledger of minutes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from orchestrator.images import tokens
from orchestrator.protocols.bencher import authentication
from orchestrator.protocols.bencher.channel import claims, operations
from orchestrator.services import heartbeat, late_results, metering
from tests.api_client import Caller
from tests.factories import RunnerFactory, personal_key
from tests.lease_model.mutants import Mutant
from tests.orchestrator.images import test_tokens
from tests.orchestrator.protocols.bencher import test_authentication
from tests.orchestrator.protocols.bencher.channel import test_claims, test_operations
from tests.orchestrator.protocols.bencher.channel.scene import new_runner, new_spec, order
from tests.orchestrator.protocols.bencher.channel.test_operations import store  # noqa: F401 a fixture
from tests.orchestrator.protocols.bencher.conftest import make_server_admin
from tests.orchestrator.services import test_metering

pytestmark = pytest.mark.django_db


def runner_with_a_job() -> Any:
    spec = new_spec()
    runner = new_runner(spec)
    order(spec)
    return runner


def late_result_of_an_earlier_lease() -> None:
    test_operations.test_a_late_result_of_an_earlier_lease_changes_nothing(runner_with_a_job(), test_operations.running)


def result_after_the_late_window() -> None:
    test_operations.test_a_result_after_the_late_window_leaves_the_output(runner_with_a_job(), is_ended=False)


def result_within_the_late_window() -> None:
    test_operations.test_a_result_within_the_late_window_replaces_the_output(runner_with_a_job())


def result_under_an_expired_lease() -> None:
    test_operations.test_a_final_message_counts_although_its_lease_has_just_expired(
        runner_with_a_job(), test_operations.complete, "completed"
    )


def completed_before_running() -> None:
    test_operations.test_a_message_in_a_status(runner_with_a_job(), "completed", "claimed", "refused")


def completed_while_canceled() -> None:
    test_operations.test_a_final_message_to_a_canceled_job_frees_its_slot(runner_with_a_job())


def heartbeat_above_the_limit() -> None:
    test_operations.test_a_heartbeat_above_the_time_limit_cancels_the_job(runner_with_a_job(), None)


def heartbeats_of_one_minute() -> None:
    start = timezone.now() - timedelta(hours=4)
    test_metering.test_repeated_heartbeats_add_no_minute(test_metering.begin(start), start)


def heartbeat_after_silence() -> None:
    start = timezone.now() - timedelta(hours=4)
    test_metering.test_a_heartbeat_after_silence_bills_the_minutes_since_the_last_one(test_metering.begin(start), start)


def start_of_an_execution() -> None:
    test_metering.test_a_heartbeat_that_begins_the_execution_bills_nothing(
        timezone.now() - timedelta(hours=4), "reached"
    )


def token_of_another_audience() -> None:
    test_tokens.test_any_other_token_is_invalid(lambda: test_tokens.signed(aud="bencher_api"))


def token_of_another_issuer() -> None:
    test_tokens.test_any_other_token_is_invalid(lambda: test_tokens.signed(iss="http://evil.example"))


def token_of_another_repository() -> None:
    test_tokens.test_another_repository_is_forbidden(str(test_tokens.UUID(int=98)))


def token_without_the_action() -> None:
    test_tokens.test_a_token_without_the_action_pull_is_forbidden()


def token_of_ten_minutes_ago() -> None:
    test_tokens.test_a_token_is_valid_for_ten_minutes()


def token_of_another_key() -> None:
    test_tokens.test_any_other_token_is_invalid(lambda: test_tokens.signed(key=b"x" * 32))


def key_of_another_runner() -> None:
    runner, ada = RunnerFactory(slug="rack-7"), Caller(personal_key(make_server_admin()))
    test_authentication.test_the_path_of_another_runner_an_archived_and_a_rotated_key_look_alike(ada, runner)


def order_that_cannot_be_rendered() -> None:
    test_claims.test_an_order_that_cannot_be_rendered_fails_its_job_and_blocks_no_other()


# Each with the named test that it must fail.
MUTANTS: tuple[tuple[Mutant, Callable[[], None]], ...] = (
    (Mutant("an earlier lease's late result", operations.finish_late, "or newest.lease.fence != newest.job.fence", ""),
     late_result_of_an_earlier_lease),
    (Mutant("a result after the late window", late_results.complete_late,
            "if _is_given_up(uow, locked.job, locked.now):", "if False:"), result_after_the_late_window),
    (Mutant("an output without its result", operations._complete, ', "result": output.result', ""),
     result_within_the_late_window),
    (Mutant("an expired lease stays", operations.finish, "expiry.expire(job_ulid=ref.job_ulid)", "pass"),
     result_under_an_expired_lease),
    (Mutant("completed before running", operations.finish, "if status in _UNFIT[type(frame)]:", "if False:"),
     completed_before_running),
    (Mutant("a cancel without an end", operations.finish, "if status is _CANCELED and found.is_held:", "if False:"),
     completed_while_canceled),
    (Mutant("no limit of time", heartbeat.renew_lease, "end_if_timed_out(uow, locked) is not None", "False"),
     heartbeat_above_the_limit),
    (Mutant("no watermark", metering.bill, "billed = job.last_billed_minute or 0", "billed = 0"),
     heartbeat_after_silence),
    (Mutant("each heartbeat bills", metering.bill, "if minute <= billed:", "if False:"), heartbeats_of_one_minute),
    (Mutant("the watermark stays", metering.bill, "job.last_billed_minute = minute", "pass"), heartbeats_of_one_minute),
    (Mutant("the start is billed", heartbeat.renew_lease, "and job.executing_at < locked.now", ""),
     start_of_an_execution),
    (Mutant("any audience", tokens._decode, "audience=audience,", "",
            (('"verify_iat": False', '"verify_iat": False, "verify_aud": False'),)), token_of_another_audience),
    (Mutant("any issuer", tokens._decode, "issuer=settings.PUBLIC_URL,", "",
            (('"verify_iat": False', '"verify_iat": False, "verify_iss": False'),)), token_of_another_issuer),
    (Mutant("any repository", tokens.verify_pull_token, "if repository != grant.repository:", "if False:"),
     token_of_another_repository),
    (Mutant("any action", tokens.verify_pull_token, "if action not in grant.actions:", "if False:"),
     token_without_the_action),
    (Mutant("for ever", tokens._check_times, "timestamp < expires_at", "timestamp"), token_of_ten_minutes_ago),
    (Mutant("any signature", tokens._decode, '"require": _REQUIRED', '"require": _REQUIRED, "verify_signature": False'),
     token_of_another_key),
    (Mutant("any path", authentication.authenticate_runner, ", **runner_filter(resource_id)", ""), key_of_another_runner),
    (Mutant("an archived key", authentication.authenticate_runner, ", archived_at__isnull=True", ""),
     key_of_another_runner),
    (Mutant("a broken order stays", claims._render, "_fail_order(claimed, worker, error)", "None"),
     order_that_cannot_be_rendered),
)  # fmt: skip


@pytest.fixture(autouse=True)
def server(settings):
    settings.PUBLIC_URL, settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "http://localhost:3000", "one", []


@contextmanager
def undone() -> Iterator[None]:
    """Run a named test within a transaction that is rolled back. Operations may open transactions of their own."""
    block = transaction.atomic()
    block._from_testcase = True
    with block:
        yield
        transaction.set_rollback(True)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("mutant", "named"), MUTANTS, ids=[mutant.name for mutant, _ in MUTANTS])
def test_every_mutant_dies(mutant, named, monkeypatch):
    with undone():
        named()
    mutant.apply(monkeypatch)
    assert fails(named), f"the mutant {mutant.name!r} survived {named.__name__}"


def fails(named: Callable[[], None]) -> bool:
    try:
        with undone():
            named()
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 `pytest.raises` fails by one that is no Exception
        return True
    return False
