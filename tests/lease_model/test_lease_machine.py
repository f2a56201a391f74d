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

EXAMPLES = int(os.environ.get("PROOF_EXAMPLES", "15"))
STEPS = int(os.environ.get("PROOF_STEPS", "30"))
SEED = int(os.environ.get("PROOF_SEED") or random.randrange(10**9))


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
def test_each_told_story_holds(story):
    tell(story)


@pytest.mark.django_db
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_dies(mutant, monkeypatch):
    mutant.apply(monkeypatch)
    assert any(_breaks(story) for story in STORIES), f"the mutant {mutant.name!r} survived"


def _breaks(story) -> bool:
    try:
        tell(story)
    except Exception:  # noqa: BLE001 - an assertion, or what an operation or the database has refused
        return True
    return False
