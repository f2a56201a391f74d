"""Envelopes: what is signed, which keys count, and every way in which one is refused (attack 103)."""

import base64
import copy
import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from orchestrator.evidence.dsse import EnvelopeRefused, pre_auth_encoding, sealed_envelope, verify
from orchestrator.evidence.public_keys import InvalidPublicKey, key_id, public_key_pem, read_public_key

MINE, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
TYPE, PAYLOAD = "application/vnd.in-toto+json", b'{"_type":"x"}'
ENVELOPE = sealed_envelope(TYPE, PAYLOAD, MINE)


def signature_of(key: Ed25519PrivateKey, data: bytes) -> str:
    return base64.b64encode(key.sign(data)).decode()


def changed(**members):
    envelope = copy.deepcopy(ENVELOPE)
    signature = {name: members.pop(name) for name in ("keyid", "sig") if name in members}
    if signature:  # of the only one
        envelope["signatures"] = [envelope["signatures"][0] | signature]
    return envelope | members


def test_the_vector_of_the_specification():
    encoded = pre_auth_encoding("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pre_auth_encoding("é", b"") == b"DSSEv1 2 \xc3\xa9 0 "  # lengths are those of bytes


def test_what_was_signed_is_returned():
    assert verify(ENVELOPE, [OTHER.public_key(), MINE.public_key()], payload_type=TYPE) == PAYLOAD


def test_the_same_payload_gives_the_same_envelope():
    assert sealed_envelope(TYPE, PAYLOAD, MINE) == ENVELOPE


def test_the_key_id_is_that_of_securesystemslib():
    theirs = SSlibKey.from_crypto(MINE.public_key())
    assert theirs.keyid == key_id(MINE.public_key())
    verified = Envelope.from_dict(copy.deepcopy(ENVELOPE)).verify([theirs], 1)
    assert list(verified) == [key_id(MINE.public_key())]


def test_a_verifier_that_computes_another_key_id_tries_the_signature_without_one():
    """Each library has an id of its own for a key, and skips signatures under other ids; docs/evidence.md has a list."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    of_go = "607f42135d7855e1145188a58aaf4c055fec1edbd7041680576e486f7ea574d1"  # recorded: go-securesystemslib v0.11.1
    public = key.public_key().public_bytes_raw().hex()
    named = json.dumps(
        {"keyid_hash_algorithms": ["sha256", "sha512"], "keytype": "ed25519", "keyval": {"public": public},
         "scheme": "ed25519"},
        separators=(",", ":"),
    )  # fmt: skip
    assert hashlib.sha256(named.encode()).hexdigest() == of_go != key_id(key.public_key())
    envelope = sealed_envelope(TYPE, PAYLOAD, key)
    assert [signature["keyid"] for signature in envelope["signatures"]] == [key_id(key.public_key()), ""]
    tried = [signature for signature in envelope["signatures"] if signature["keyid"] in ("", of_go)]
    for signature in tried:
        key.public_key().verify(base64.b64decode(signature["sig"]), pre_auth_encoding(TYPE, PAYLOAD))
    assert verify(envelope, [key.public_key()]) == PAYLOAD
    assert verify(envelope | {"signatures": tried}, [OTHER.public_key(), key.public_key()]) == PAYLOAD
    assert list(Envelope.from_dict(envelope).verify([SSlibKey.from_crypto(key.public_key())], 1))


def test_without_a_key_id_all_keys_are_tried():
    for absent in ("", None):
        assert verify(changed(keyid=absent), [OTHER.public_key(), MINE.public_key()]) == PAYLOAD


def test_both_alphabets_of_base64_are_accepted():
    payload = b"\xfb\xff\xfe"
    envelope = sealed_envelope(TYPE, payload, MINE)
    envelope["payload"] = base64.urlsafe_b64encode(payload).decode()
    assert verify(envelope, [MINE.public_key()]) == payload


REFUSED = {
    "payload changed": changed(payload=base64.b64encode(b"{}").decode()),
    "type changed": changed(payloadType="text/plain"),
    "type missing": changed(payloadType=None),
    "signature of the payload alone": changed(sig=signature_of(MINE, PAYLOAD)),
    "signature of another key under the id of this one": changed(
        sig=signature_of(OTHER, pre_auth_encoding(TYPE, PAYLOAD))
    ),
    "id of another trusted key": changed(keyid=key_id(OTHER.public_key())),
    "id of an unknown key": changed(keyid="0" * 64),
    "id that is no text": changed(keyid=1),
    "no signature": changed(signatures=[]),
    "signatures that are no list": changed(signatures={}),
    "signature that is no object": changed(signatures=["x"]),
    "signature twice": changed(signatures=ENVELOPE["signatures"] * 2),
    "signature without id twice": changed(signatures=[{"sig": ENVELOPE["signatures"][0]["sig"]}] * 2),
    "signature under two ids": changed(
        signatures=[ENVELOPE["signatures"][0], ENVELOPE["signatures"][0] | {"keyid": key_id(OTHER.public_key())}]
    ),
    "too many signatures": changed(
        signatures=[*ENVELOPE["signatures"], *({"sig": base64.b64encode(bytes([n])).decode()} for n in range(16))]
    ),
    "payload with a byte after it": changed(payload=ENVELOPE["payload"] + "\n"),
    "payload without padding": changed(payload=ENVELOPE["payload"].rstrip("=") + "=" * 4),
    "both alphabets mixed": changed(payload=base64.b64encode(b"\xfb\xff\xfe\xfb").decode().replace("+", "-", 1)),
    "payload missing": changed(payload=None),
    "signature with bits that decoders ignore": changed(sig=ENVELOPE["signatures"][0]["sig"][:-3] + "h=="),
    "short signature": changed(sig="AAAA"),
}


@pytest.mark.parametrize("envelope", REFUSED.values(), ids=REFUSED)
def test_everything_else_is_refused(envelope):
    with pytest.raises(EnvelopeRefused):
        verify(envelope, [MINE.public_key(), OTHER.public_key()], payload_type=TYPE)


def test_another_type_is_refused_even_if_it_is_signed():
    with pytest.raises(EnvelopeRefused, match="payload type"):
        verify(sealed_envelope("text/plain", PAYLOAD, MINE), [MINE.public_key()], payload_type=TYPE)


def test_without_keys_it_is_refused_with_the_id_of_the_missing_one():
    with pytest.raises(EnvelopeRefused, match=key_id(MINE.public_key())):
        verify(ENVELOPE, [])


@given(st.data())
def test_any_changed_byte_of_an_envelope_is_refused_or_changes_nothing(data):
    """As JSON an envelope has blanks and names that are ignored; the payload never differs."""
    text = bytearray(json.dumps(ENVELOPE).encode())
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    try:
        found = verify(json.loads(bytes(text)), [MINE.public_key()], payload_type=TYPE)
    except (EnvelopeRefused, ValueError, AttributeError):
        return
    assert found == PAYLOAD


def test_a_public_key_is_read_from_its_pem():
    assert read_public_key(public_key_pem(MINE.public_key())) == MINE.public_key()


def test_other_keys_are_refused():
    private = MINE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    curve = generate_private_key(SECP256R1()).public_key()
    other = curve.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for pem in (private, other, b"", b"-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n", "key"):
        with pytest.raises(InvalidPublicKey):
            read_public_key(pem)
