"""`GET /api/jobs/{id}/graph`: nodes, edges, the critical path, bounds."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.selectors import job_graph
from orchestrator.selectors.job_graph import DependencyGraph, Edge, graph_of
from runtime_jobs.models import Job
from tests.orchestrator.protocols.stella.requests import claim, complete, ok, row_of, submit

T = datetime(2026, 1, 1, tzinfo=UTC)


def graph(caller, shown):
    return ok(caller.get(f"/api/jobs/{shown['jobId']}/graph"))


@pytest.mark.django_db
class TestGraph:
    def test_what_comes_before_and_after_and_nothing_else(self, alice):
        first = submit(alice)
        second = submit(alice, dependencies=[first["jobId"]])
        third = submit(alice, dependencies=[second["jobId"], first["jobId"]])
        sibling = submit(alice, dependencies=[first["jobId"]])
        submit(alice)
        found = graph(alice, second)
        ids = [shown["jobId"] for shown in (first, second, third)]
        assert sorted(node["jobId"] for node in found["nodes"]) == sorted(ids)
        assert sibling["jobId"] not in str(found)
        assert sorted((edge["from"], edge["to"]) for edge in found["edges"]) == sorted(
            [(ids[0], ids[1]), (ids[1], ids[2]), (ids[0], ids[2])]
        )
        assert found["criticalPath"] == {"jobIds": ids, "seconds": 0}
        assert {node["jobId"]: node["status"] for node in found["nodes"]} == dict(
            zip(ids, ["queued", "created", "created"], strict=True)
        )
        assert not found["truncated"]

    def test_a_job_alone(self, alice):
        shown = submit(alice)
        found = graph(alice, shown)
        assert ([node["jobId"] for node in found["nodes"]], found["edges"]) == ([shown["jobId"]], [])

    def test_the_path_that_took_longest(self, alice, worker):
        long, short = submit(alice), submit(alice)
        end = submit(alice, dependencies=[long["jobId"], short["jobId"]])
        for seconds, shown in ((90, long), (10, short)):
            complete(claim(worker))
            row = row_of(shown)
            Job.objects.filter(pk=row.pk).update(started_at=row.finished_at - timedelta(seconds=seconds))
        found = graph(alice, end)
        assert found["criticalPath"] == {"jobIds": [long["jobId"], end["jobId"]], "seconds": 90}

    def test_beyond_the_limit_the_nearest_are_kept(self, alice, monkeypatch):
        chain = [submit(alice)]
        for _ in range(6):
            chain.append(submit(alice, dependencies=[chain[-1]["jobId"]]))
        found = graph_of(row_of(chain[3]), limit=3)
        assert found.is_truncated
        assert set(found.jobs) == {row_of(chain[place]).root_job_ulid for place in (2, 3, 4)}
        assert len(found.edges) == 2
        assert job_graph.MAX_NODES == 200

    def test_it_costs_as_many_queries_as_a_job_alone(self, alice, django_assert_max_num_queries):
        chain = [submit(alice)]
        for _ in range(5):
            chain.append(submit(alice, dependencies=[chain[-1]["jobId"]]))
        with django_assert_max_num_queries(13):
            graph(alice, chain[2])


@given(st.lists(st.tuples(st.integers(0, 30), st.sets(st.integers(0, 7))), min_size=1, max_size=8))
def test_the_critical_path_is_the_longest_of_all_paths(drawn):
    jobs = {
        str(place): Job(root_job_ulid=str(place), started_at=T, finished_at=T + timedelta(seconds=seconds))
        for place, (seconds, _) in enumerate(drawn)
    }
    edges = [
        Edge(str(place), str(on), needs_success=True)
        for place, (_, before) in enumerate(drawn)
        for on in before
        if on < place
    ]
    built = DependencyGraph("0", jobs, edges, is_truncated=False)
    longest = {}
    for place, (seconds, _) in enumerate(drawn):
        before = [longest[edge.on] for edge in edges if edge.job == str(place)]
        longest[str(place)] = seconds + max(before, default=0)
    path = built.critical_path(T)
    assert sum(built.seconds_of(jobs[root], T) for root in path) == max(longest.values())
    links = {(edge.on, edge.job) for edge in edges}
    assert all(pair in links for pair in pairwise(path))
