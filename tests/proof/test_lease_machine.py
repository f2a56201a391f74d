"""Random stories of the lease protocol, each step audited. `PROOF_EXAMPLES`, `PROOF_STEPS` and `PROOF_SEED` change them.

And a test of this test: with any one guard taken out of the verbs, the same machine must fail."""

import os
import random

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.proof.machine import LeaseMachine
from tests.proof.mutants import MUTANTS

EXAMPLES = int(os.environ.get("PROOF_EXAMPLES", "15"))
STEPS = int(os.environ.get("PROOF_STEPS", "30"))
SEED = int(os.environ.get("PROOF_SEED") or random.randrange(10**9))

FOUND_WITHIN = int(os.environ.get("PROOF_MUTANT_EXAMPLES", "400"))  # stories; most mutants need a few
MUTANT_SEED = 1  # the same stories each time: whether a mutant dies shall not be luck


def tell_stories(number: int, **more) -> None:
    machine = seed(number)(type("LeaseMachine", (LeaseMachine,), {}))
    given = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)} | more
    run_state_machine_as_test(machine, settings=settings(**given))


@pytest.mark.timeout(900)
@pytest.mark.django_db
def test_no_story_breaks_an_invariant(capsys):
    with capsys.disabled():
        print(f"\n{EXAMPLES} stories of {STEPS} steps, PROOF_SEED={SEED}")  # noqa: T201 - this repeats it
    tell_stories(SEED, max_examples=EXAMPLES, stateful_step_count=STEPS, print_blob=True)


@pytest.mark.skipif("PROOF_EXAMPLES" not in os.environ, reason="takes minutes: make proof")
@pytest.mark.timeout(1200)
@pytest.mark.django_db
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_dies(mutant, monkeypatch):
    monkeypatch.setattr(mutant.original, "__code__", mutant.code())
    try:
        tell_stories(
            MUTANT_SEED,
            max_examples=FOUND_WITHIN,
            stateful_step_count=40,
            phases=[Phase.generate],
            report_multiple_bugs=False,
        )
    except Exception:  # noqa: BLE001 - an assertion, or what a verb or the database has refused
        return
    pytest.fail(f"the mutant {mutant.name!r} survived {FOUND_WITHIN} stories")
