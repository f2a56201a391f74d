"""Access tokens of people and project keys: their content, their end, and confusion with other tokens."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import jwt
import pytest

from orchestrator.images import tokens
from orchestrator.images.tokens import (
    AccessGrant,
    InvalidPullToken,
    PullGrant,
    RepositoryAccess,
    new_access_token,
    new_pull_token,
    read_pull_token,
    read_token,
)

PROJECT = UUID(int=99)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ACCESS = RepositoryAccess("adapter", PROJECT, ("pull", "push"), ("pull",), UUID(int=98))
UNKNOWN = RepositoryAccess("secret", None, ("pull",), ())


@pytest.fixture(autouse=True)
def server(settings):
    settings.PUBLIC_URL, settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "http://localhost:3000", "one", []


def access_token(audience="oci_auth"):
    return new_access_token("mia", [ACCESS, UNKNOWN], audience=audience, now=NOW)


@pytest.mark.parametrize("audience", ["oci_auth", "oci_project"])
def test_the_content_is_read_as_it_was_written(audience):
    assert read_token(access_token(audience), now=NOW) == AccessGrant("mia", (ACCESS, UNKNOWN))


def test_a_pull_token_is_read_too():
    assert read_token(new_pull_token(UUID(int=7), PROJECT, now=NOW), now=NOW) == PullGrant(
        UUID(int=7), str(PROJECT), ("pull",)
    )


def test_an_entry_is_found_by_the_requested_name_or_by_the_uuid():
    grant = read_token(access_token(), now=NOW)
    assert (grant.find("adapter"), grant.find(str(PROJECT)), grant.find("secret")) == (ACCESS, ACCESS, UNKNOWN)
    assert grant.find("other") is None
    assert grant.find("None") is None


def test_a_token_is_valid_for_five_minutes():
    read_token(access_token(), now=NOW + timedelta(seconds=299))
    with pytest.raises(InvalidPullToken):
        read_token(access_token(), now=NOW + timedelta(seconds=300))


def resigned(audience, key_audience, **claims):
    """The claims of a valid token with these changes, signed by the key of an audience."""
    payload = jwt.decode(access_token(), options={"verify_signature": False}) | {"aud": audience} | claims
    return jwt.encode(payload, tokens._key("one", key_audience), algorithm="HS256")


def test_the_same_claims_signed_by_hand_are_accepted():
    """So each refusal below has the one cause that it names."""
    assert read_token(resigned("oci_auth", "oci_auth"), now=NOW)


@pytest.mark.parametrize(
    ("audience", "key_audience"),
    [
        ("oci_auth", "oci_runner"), ("oci_auth", "oci_project"), ("oci_project", "oci_auth"), ("oci_public", "oci_public"),
        ("bencher_api", "oci_auth"), (["oci_auth"], "oci_auth"), (None, "oci_auth"), ("oci_runner", "oci_auth"),
    ],
)  # fmt: skip
def test_a_token_of_one_audience_is_none_of_another(audience, key_audience):
    with pytest.raises(InvalidPullToken):
        read_token(resigned(audience, key_audience), now=NOW)


def test_an_access_token_is_no_pull_token():
    with pytest.raises(InvalidPullToken):
        read_pull_token(access_token(), now=NOW)


@pytest.mark.parametrize(
    "access",
    [None, "all", [{}], [1], [{"name": "a", "project": "x", "requested": [], "actions": []}], {"name": "a"}],
)
def test_malformed_claims_are_refused(access):
    with pytest.raises(InvalidPullToken):
        read_token(resigned("oci_auth", "oci_auth", access=access), now=NOW)


@pytest.mark.parametrize("text", ["", "a.b.c", "é" * 40, "a" * 9000, ".."])
def test_any_other_text_is_refused(text):
    with pytest.raises(InvalidPullToken):
        read_token(text, now=NOW)


@pytest.mark.parametrize("algorithm", ["none", "HS512"])
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_another_algorithm_is_refused(algorithm):
    payload = jwt.decode(access_token(), options={"verify_signature": False})
    key = "" if algorithm == "none" else tokens._key("one", "oci_auth")
    with pytest.raises(InvalidPullToken):
        read_token(jwt.encode(payload, key, algorithm=algorithm), now=NOW)
