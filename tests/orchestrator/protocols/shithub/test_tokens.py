"""Tokens of jobs: the form of contract 1.2, and everything else refused before a query is made."""

import base64
import json
from datetime import UTC, datetime, timedelta

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from orchestrator.core.sealing import derived_keys
from orchestrator.job_tokens.claims import (
    KEY_LABEL,
    InvalidJobToken,
    JobToken,
    TokenPurpose,
    new_token,
    next_token,
    sign,
    verify,
)

NOW = datetime(2026, 5, 10, 21, 0, 0, 999999, tzinfo=UTC)
ROOT = base64.b64encode(b"\x42" * 32).decode()
IDS = {"runner_id": 7, "job_id": 10, "run_id": 20, "repository_id": 30, "fence": 2, "chain": 1}


@pytest.fixture(autouse=True)
def _root_key(settings):
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = ROOT, []


def token(purpose: TokenPurpose = TokenPurpose.API) -> JobToken:
    return new_token(purpose, **IDS, now=NOW)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def payload_of(text: str) -> dict[str, object]:
    found = text.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(found + "=" * (-len(found) % 4)))


def signed(payload: object, *, key: bytes | None = None, headers: dict[str, str] | None = None) -> str:
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return jwt.PyJWS().encode(raw, key or derived_keys(KEY_LABEL)[0], algorithm="HS256", headers=headers)


@pytest.mark.parametrize(
    ("byte", "expected"),
    [
        (0x42, "f7f283dae5e782a4f26b8f4157c5ad6a0275b1dfc5df2dbea48714d8b17c23b6"),
        (0x99, "840583e8578e2fb7028395cc0fab8c3145d13272a7224771505d047d93d969c8"),
    ],
)
def test_the_key_is_derived_as_the_contract_says(settings, byte, expected):
    settings.ACTIONS_ROOT_KEY = base64.b64encode(bytes([byte]) * 32).decode()
    assert derived_keys(KEY_LABEL)[0].hex() == expected


def test_a_token_has_the_header_and_claims_of_the_contract():
    made = token()
    text = sign(made)
    assert jwt.get_unverified_header(text) == {"alg": "HS256", "typ": "JWT"}
    assert "=" not in text
    assert payload_of(text) == {
        "sub": "runner:7",
        "purpose": "api",
        "job_id": 10,
        "run_id": 20,
        "repo_id": 30,
        "fence": 2,
        "chain": 1,
        "exp": int((NOW + timedelta(minutes=15)).timestamp()),
        "jti": made.jti,
    }
    assert len(made.jti) == 43
    assert verify(text) == made


def test_the_next_token_differs_in_its_id_and_expiry_alone():
    first = token()
    second = next_token(first, now=NOW + timedelta(seconds=3))
    assert (second.jti != first.jti, second.expires_at - first.expires_at) == (True, timedelta(seconds=3))
    named = ("runner_id", "job_id", "run_id", "repository_id", "fence", "chain", "purpose")
    assert all(getattr(first, name) == getattr(second, name) for name in named)


def test_a_token_of_a_former_root_key_is_verified_and_none_is_signed_with_it(settings):
    text = sign(token())
    settings.ACTIONS_ROOT_KEY = base64.b64encode(b"\x99" * 32).decode()
    with pytest.raises(InvalidJobToken):
        verify(text)
    settings.ACTIONS_ROOT_KEYS_OLD = [ROOT]
    assert verify(text).jti
    assert jwt.PyJWS().decode(sign(token()), derived_keys(KEY_LABEL)[0], algorithms=["HS256"])


@pytest.mark.parametrize("purpose", [None, "", "api"])
def test_a_token_without_a_purpose_is_for_the_api(purpose):
    claims = payload_of(sign(token())) | {"purpose": purpose}
    assert verify(signed({name: value for name, value in claims.items() if value is not None})).purpose == "api"


WRONG_CLAIMS = [
    *({"sub": value} for value in ("runner:0", "runner:-1", "runner:07", "worker:7", "runner:7 ", "", None, 7)),
    {"sub": "runner:9223372036854775808"},
    *({name: value} for name in ("job_id", "run_id", "repo_id", "fence", "exp") for value in (0, -1, "1", 1.0, True)),
    {"job_id": 2**63},
    {"exp": 10**18},
    *({"chain": value} for value in (-1, "0", None, True)),
    *({"jti": value} for value in ("", "a" * 15, "a" * 129, "ä" * 20, None, 5)),
    *({"purpose": value} for value in ("git", "API", 1, ["api"])),
]


@pytest.mark.parametrize("changes", WRONG_CLAIMS, ids=str)
def test_a_wrong_claim_is_refused(changes):
    claims = payload_of(sign(token()))
    with pytest.raises(InvalidJobToken):
        verify(signed(claims | changes))


@pytest.mark.parametrize("name", ["sub", "job_id", "run_id", "repo_id", "fence", "chain", "exp", "jti"])
def test_a_missing_claim_is_refused(name):
    claims = payload_of(sign(token()))
    del claims[name]
    with pytest.raises(InvalidJobToken):
        verify(signed(claims))


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"1", b"{", b"\xff", b'{"sub": NaN}'])
def test_a_payload_that_is_no_object_is_refused(payload):
    with pytest.raises(InvalidJobToken):
        verify(signed(payload))


def test_other_algorithms_headers_and_keys_are_refused():
    claims = payload_of(sign(token()))
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    head, body, signature = sign(token()).split(".")
    texts = [
        jwt.PyJWS().encode(json.dumps(claims).encode(), "", algorithm="none"),
        jwt.PyJWS().encode(json.dumps(claims).encode(), rsa_key, algorithm="RS256"),
        jwt.PyJWS().encode(json.dumps(claims).encode(), derived_keys(KEY_LABEL)[0] * 2, algorithm="HS512"),
        signed(claims, key=b"k" * 32),
        signed(claims, headers={"kid": "1"}),
        signed(claims, headers={"typ": "at+jwt"}),
        signed(claims, headers={"jku": "https://attacker.example/keys"}),
        f"{part({'alg': 'HS256'})}.{body}.{signature}",
        f"{part({'alg': 'hs256', 'typ': 'JWT'})}.{body}.{signature}",
        f"{head}.{part(claims | {'job_id': 11})}.{signature}",
        f"{head}.{body}.{'A' * 43}",
    ]
    for text in texts:
        with pytest.raises(InvalidJobToken):
            verify(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "a.b",
        lambda text: f"{text}.x",
        lambda text: f"{text}=",
        lambda text: f" {text}",
        lambda text: f"{text}\n",
        lambda text: text.replace(".", "..", 1),
        lambda text: text.rsplit(".", 1)[0] + ".",
        lambda text: "ä" + text,
        lambda text: "a" * 102_400,
        lambda text: ".".join(["a" * 34_000] * 3),
    ],
)
def test_another_shape_is_refused_before_a_signature_is_computed(monkeypatch, change):
    text = change(sign(token()))
    monkeypatch.setattr("orchestrator.job_tokens.claims._verified_payload", None)
    with pytest.raises(InvalidJobToken):
        verify(text)
