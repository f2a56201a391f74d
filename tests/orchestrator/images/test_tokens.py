"""Pull tokens of runners (contract 1.5): what they contain, and every token that the registry must not accept."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import jwt
import pytest

from orchestrator.images import tokens
from orchestrator.images.tokens import InvalidPullToken, PullForbidden, new_pull_token, verify_pull_token

RUNNER, PROJECT = UUID(int=7), UUID(int=99)
REPOSITORY = str(PROJECT)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def server(settings):
    settings.PUBLIC_URL, settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "http://localhost:3000", "one", []


def claims(**changes):
    return {
        "aud": "oci_runner",
        "iat": NOW,
        "exp": NOW + timedelta(seconds=600),
        "iss": "http://localhost:3000",
        "sub": str(RUNNER),
        "oci": {"repository": REPOSITORY, "actions": ["pull"]},
    } | changes


def signed(key=None, algorithm="HS256", **changes):
    payload = {name: value for name, value in claims(**changes).items() if value is not None}
    return jwt.encode(payload, tokens._key("one") if key is None else key, algorithm=algorithm)


def test_the_token_has_the_claims_of_the_contract():
    token = new_pull_token(RUNNER, PROJECT, now=NOW)
    assert jwt.get_unverified_header(token) == {"alg": "HS256", "typ": "JWT"}
    found = jwt.decode(token, options={"verify_signature": False})
    seconds = int(NOW.timestamp())
    assert found == claims(iat=seconds, exp=seconds + 600)
    assert [bool(part) and "=" not in part for part in token.split(".")] == [True] * 3, "base64url without padding"


def test_a_valid_token_permits_to_pull_the_images_of_its_project():
    grant = verify_pull_token(new_pull_token(RUNNER, PROJECT, now=NOW), repository=REPOSITORY, now=NOW)
    assert (grant.runner, grant.repository, grant.actions) == (RUNNER, REPOSITORY, ("pull",))


def test_a_token_is_valid_for_ten_minutes():
    token = new_pull_token(RUNNER, PROJECT, now=NOW)
    verify_pull_token(token, repository=REPOSITORY, now=NOW + timedelta(seconds=599))
    for late in (600, 601):
        with pytest.raises(InvalidPullToken):
            verify_pull_token(token, repository=REPOSITORY, now=NOW + timedelta(seconds=late))


def test_a_token_of_the_future_is_refused_beyond_the_skew_of_clocks():
    token = new_pull_token(RUNNER, PROJECT, now=NOW)
    verify_pull_token(token, repository=REPOSITORY, now=NOW - timedelta(seconds=60))
    with pytest.raises(InvalidPullToken):
        verify_pull_token(token, repository=REPOSITORY, now=NOW - timedelta(seconds=61))


@pytest.mark.parametrize("repository", ["adapter", REPOSITORY.upper() + "A", f"{REPOSITORY}/x", str(UUID(int=98)), ""])
def test_another_repository_is_forbidden(repository):
    token = new_pull_token(RUNNER, PROJECT, now=NOW)
    with pytest.raises(PullForbidden):
        verify_pull_token(token, repository=repository, now=NOW)


def test_a_pull_token_does_not_permit_to_push():
    with pytest.raises(PullForbidden):
        verify_pull_token(new_pull_token(RUNNER, PROJECT, now=NOW), repository=REPOSITORY, action="push", now=NOW)


def test_a_token_without_the_action_pull_is_forbidden():
    token = signed(oci={"repository": REPOSITORY, "actions": []})
    with pytest.raises(PullForbidden):
        verify_pull_token(token, repository=REPOSITORY, now=NOW)


def test_the_same_claims_signed_by_hand_are_accepted():
    """So each refusal below has the one cause that it names."""
    verify_pull_token(signed(), repository=REPOSITORY, now=NOW)


@pytest.mark.parametrize(
    "token",
    [
        *(pytest.param(lambda c=c: signed(**c), id=next(iter(c)) + str(n)) for n, c in enumerate(
            [
                {"aud": "oci"}, {"aud": "bencher_api"}, {"aud": None}, {"iss": "http://evil.example"}, {"iss": None},
                {"exp": None}, {"iat": None}, {"sub": None}, {"sub": "mia"}, {"oci": None}, {"oci": "all"},
                {"oci": {"repository": REPOSITORY}}, {"oci": {"actions": ["pull"]}},
            ]
        )),
        pytest.param(lambda: signed(key=b"x" * 32), id="another key"),
        pytest.param(lambda: signed(key=b"one"), id="the secret key itself"),
        pytest.param(lambda: signed(key="", algorithm="none"), id="no signature"),
        pytest.param(lambda: signed(algorithm="HS512"), id="another algorithm"),
        pytest.param(lambda: signed().rpartition(".")[0] + ".", id="cut signature"),
        pytest.param(lambda: "", id="empty"),
        pytest.param(lambda: "a.b.c", id="no token"),
        pytest.param(lambda: "é" * 40, id="no ASCII"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_any_other_token_is_invalid(token):
    with pytest.raises(InvalidPullToken):
        verify_pull_token(token(), repository=REPOSITORY, now=NOW)


def test_a_token_of_a_former_secret_key_stays_valid_while_it_is_named(settings):
    token = new_pull_token(RUNNER, PROJECT, now=NOW)
    settings.SECRET_KEY = "two"
    with pytest.raises(InvalidPullToken):
        verify_pull_token(token, repository=REPOSITORY, now=NOW)
    settings.SECRET_KEY_FALLBACKS = ["one"]
    verify_pull_token(token, repository=REPOSITORY, now=NOW)
