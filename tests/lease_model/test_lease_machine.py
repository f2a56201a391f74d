"""Random stories of the lease protocol, each step audited. `PROOF_EXAMPLES`, `PROOF_STEPS` and `PROOF_SEED` change them.

A test of this test: with any one check removed from the operations the machine must fail, and not by chance. Random
sequences seldom reach the scenarios of `scenarios.py`: without them most mutants survived hundreds of sequences.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.lease_model.mutants import MUTANTS
from tests.lease_model.scenarios import STORIES, tell
from tests.lease_model.settling_machine import SettlingMachine
from tests.lease_model.state_machine import LeaseMachine

EXAMPLES = int(os.environ.get("PROOF_EXAMPLES", "5"))
STEPS = int(os.environ.get("PROOF_STEPS", "30"))
SEED = int(os.environ.get("PROOF_SEED") or random.randrange(10**9))


# The story that each mutant does not survive. It comes first; the others follow only if the mutant survives it.
KILLERS = {
    "no fence": "beats_past_the_limit",
    "no expiry": "speaks_at_the_last_moment",
    "heartbeats shorten": "a_result_is_unreadable",
    "cancel unasked": "cancels_unasked",
    "the clock is early": "a_clock_is_early",
    "a running job waits again": "reports_at_once",
    "retries for ever": "completes_before_it_executes",
    "a heartbeat acknowledges nothing": "two_workers_beat_together",
    "no version comparison of the lease": "renews_while_it_is_revoked",
    "no version comparison of the job": "renews_while_it_is_canceled",
    "alive at the last moment": "is_silent_after_a_cancel",
    "anybody's lease": "speaks_for_another",
    "another last word": "fails_and_then_reports_a_result",
    "a repeated message has no second effect": "a_result_is_read",
    "forced at once": "a_clock_is_early",
    "timed out at once": "beats_past_the_limit",
    "a cancel is forgotten": "is_silent_after_a_cancel",
    "a success after the deadline": "succeeds_after_the_deadline",
    "more than it can hold": "claims_more_than_it_can_hold",
    "a worker gets a job that it cannot run": "several_claim_at_once",
    "the same fence again": "an_older_worker_reports_late",
    "requeued for ever": "is_lost_before_it_was_acknowledged",
    "retried while it runs": "is_retried_too_soon_and_too_often",
    "late for ever": "reports_too_late",
    "an older lease's late result": "an_older_worker_reports_late",
    "anybody's late result": "an_older_worker_reports_late",
    "no table of transitions": "completes_before_it_executes",
    "settled twice": "a_result_is_read",
    "given up early": "reports_late",
    "lost in spite of a cancel": "is_silent_after_a_cancel",
    "canceled while it is read": "a_result_is_read",
    "a lost job is asked to stop": "is_canceled_after_it_was_lost",
    "heartbeats past the limit": "beats_past_the_limit",
    "renews for another worker": "two_workers_beat_together",
    "a result is not read": "a_result_is_read",
    "retried twice": "is_retried_too_soon_and_too_often",
}


def tell_stories(kind: type[LeaseMachine], number: int, **more) -> None:
    machine = seed(number)(type(kind.__name__, (kind,), {}))
    given = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)} | more
    run_state_machine_as_test(machine, settings=settings(**given))


@pytest.mark.timeout(900)
@pytest.mark.django_db
@pytest.mark.parametrize("kind", [LeaseMachine, SettlingMachine], ids=lambda kind: kind.__name__)
def test_no_story_breaks_an_invariant(kind, capsys):
    with capsys.disabled():
        print(f"\n{EXAMPLES} stories of {STEPS} steps, PROOF_SEED={SEED}")  # noqa: T201 - this repeats it
    tell_stories(kind, SEED, max_examples=EXAMPLES, stateful_step_count=STEPS, print_blob=True)


@pytest.mark.django_db
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_each_recorded_story_holds(story):
    tell(story)


def test_the_story_of_each_mutant_is_known():
    """Without it a mutant survives up to 33 others first, which takes seconds."""
    assert set(KILLERS) == {mutant.name for mutant in MUTANTS}
    assert set(KILLERS.values()) <= {story.__name__ for story in STORIES}


@pytest.mark.django_db
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_dies(mutant, monkeypatch):
    mutant.apply(monkeypatch)
    stories = sorted(STORIES, key=lambda story: story.__name__ != KILLERS.get(mutant.name))
    assert any(_breaks(story) for story in stories), f"the mutant {mutant.name!r} survived"


def _breaks(story) -> bool:
    try:
        tell(story)
    except Exception:  # noqa: BLE001 - an assertion, or what an operation or the database has refused
        return True
    return False
