"""The digest of a specification is that of its canonical JSON, whichever library writes it."""

import hashlib
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime_jobs.specs import Cache, Pattern, RepositorySource, StepsSpec

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def expected(request: StepsSpec) -> str:
    members = {name: value for name, value in vars(request).items() if (name, value) != ("trace", None)}
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=vars)
    return hashlib.sha256(canonical.encode()).hexdigest()


@given(
    name=TEXT,
    steps=st.lists(TEXT, max_size=3).map(tuple),
    timeout_seconds=st.integers(1, 2**70),
    environment=st.dictionaries(TEXT, TEXT, max_size=4),
    artifacts=st.lists(st.builds(Pattern, TEXT, TEXT), max_size=2).map(tuple),
    caches=st.lists(st.builds(Cache, TEXT, TEXT, st.tuples(TEXT), st.booleans()), max_size=2).map(tuple),
    trace=st.sampled_from([None, "none", "full"]),
    source=st.none() | st.builds(RepositorySource, TEXT, TEXT, TEXT, st.none() | TEXT, TEXT, st.none() | st.integers()),
)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_the_digest_is_that_of_canonical_json(**values):
    spec = StepsSpec(**values)
    assert spec.digest == expected(spec)
