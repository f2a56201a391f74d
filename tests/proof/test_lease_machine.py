"""Random stories of the lease protocol, each step audited. `PROOF_EXAMPLES` and `PROOF_STEPS` make it longer."""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.proof.machine import LeaseMachine

EXAMPLES = int(os.environ.get("PROOF_EXAMPLES", "15"))
STEPS = int(os.environ.get("PROOF_STEPS", "30"))


@pytest.mark.timeout(900)
@pytest.mark.django_db
def test_no_story_breaks_an_invariant():
    run_state_machine_as_test(
        LeaseMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
