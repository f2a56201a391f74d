"""Every pair of operations that can meet on one job. `PROOF_ROUNDS` makes it longer, and prints the winners."""

import functools
import os
import sys
from collections import Counter

import pytest

from orchestrator.services import cancellation, late_results, worker_state
from runtime_jobs.models import Job, JobEvent
from runtime_jobs.states import FINAL_STATES
from tests.factories import OPERATOR, ProjectFactory
from tests.orchestrator.services.operation_pairs import (
    ACTIONS,
    HOUR,
    PAIRS,
    SPOKEN_ENDS,
    cast,
    has_one_winner,
    ring,
    scene_for,
    winner,
)
from tests.suite_functions import audit_findings

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("PROOF_ROUNDS", "3"))


def tell(pair: tuple[str, str], count: Counter[str]) -> None:
    if ROUNDS >= 100:
        text = ", ".join(f"{who} {times}" for who, times in sorted(count.items()))
        sys.stderr.write(f"\n{' x '.join(pair):40} {sum(count.values()):7} rounds: {text}")


@pytest.mark.parametrize("first", ACTIONS)
def test_of_two_verbs_that_meet_there_is_one_story(first, monkeypatch, capsys):
    with ring(monkeypatch) as meeting:
        project, (holder, other) = ProjectFactory(), cast()
        for pair in [pair for pair in PAIRS if pair[0] == first]:
            count: Counter[str] = Counter()
            for _ in range(ROUNDS):
                scene = scene_for(pair, project, holder, other)
                acts = [functools.partial(ACTIONS[name], scene.seen_by(place)) for place, name in enumerate(pair)]
                answers = meeting.meet(*acts)
                who = winner(pair, answers)
                count[who] += 1
                if has_one_winner(pair):
                    assert who in pair, (pair, answers)
                if pair[0] == pair[1] and pair[0] in SPOKEN_ENDS:
                    assert who == "both", "the same word twice is answered twice the same"
                assert_one_end(scene.job)
                put_away(scene)
            assert audit_findings() == [], pair
            with capsys.disabled():
                tell(pair, count)


def assert_one_end(job_ulid):
    ends = JobEvent.objects.filter(job_id=job_ulid, to_state__in=FINAL_STATES).count()
    assert ends == Job.objects.get(job_ulid=job_ulid).is_final


def put_away(scene):
    """End what is left of the round, so that the next round does not claim it."""
    for job_ulid in Job.objects.exclude(state__in=FINAL_STATES).values_list("job_ulid", flat=True):
        at = scene.ends + 3 * HOUR
        if late_results.settle(job_ulid=job_ulid, now=at):
            continue
        cancellation.cancel(job_ulid=job_ulid, actor=OPERATOR, deadline_seconds=30, now=at)
        worker_state.revoke(job_ulid=job_ulid, actor=OPERATOR, reason="the round is over", now=at)
