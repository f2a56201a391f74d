"""Signing keys: the first one, rotation, retirement, and the files that hold the private halves."""

import io
import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.core.management import CommandError, call_command
from django.db import connection

from orchestrator.core.cause import Cause
from orchestrator.evidence.dsse import EnvelopeRefused, verify
from orchestrator.evidence.models import SigningKey
from orchestrator.evidence.public_keys import key_id, read_public_key
from orchestrator.evidence.signing_keys import (
    SigningKeyError,
    create_signing_key,
    public_keys,
    retire_signing_key,
    sign,
)
from runtime_jobs.models import OperatorEvent
from tests.api_client import Caller
from tests.factories import OPERATOR

TYPE = "application/vnd.in-toto+json"
MINE = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)


def pem(key) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.SIGNING_KEY_DIR = str(tmp_path / "keys")
    return tmp_path / "keys"


def signer_of(envelope) -> str:
    return envelope["signatures"][0]["keyid"]


def make_key(age: int = 0) -> SigningKey:
    return create_signing_key(actor=OPERATOR, reason="test", now=datetime.now(UTC) - timedelta(seconds=age))


def run(*arguments: str) -> str:
    output = io.StringIO()
    call_command("signingkey", *arguments, stdout=output)
    return output.getvalue()


@pytest.mark.django_db
class TestKeys:
    def test_the_first_signature_creates_a_key(self, folder):
        envelope = sign(TYPE, b"x")
        key = SigningKey.objects.get()
        assert signer_of(envelope) == key.key_id
        assert verify(envelope, public_keys()) == b"x"
        path = folder / f"{key.key_id}.pem"
        assert path.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [file.name for file in folder.iterdir()] == [path.name]
        assert OperatorEvent.objects.get().action == "signing_key.created"
        assert signer_of(sign(TYPE, b"y")) == key.key_id

    def test_a_new_key_signs_and_the_old_one_still_verifies(self):
        old = make_key(age=60)
        before = sign(TYPE, b"x")
        new = make_key()
        after = sign(TYPE, b"x")
        assert (signer_of(before), signer_of(after)) == (old.key_id, new.key_id)
        old_public, new_public = read_public_key(old.public_pem), read_public_key(new.public_pem)
        assert verify(before, [old_public]) == verify(after, [new_public]) == b"x"
        for envelope, key in ((before, new_public), (after, old_public)):
            with pytest.raises(EnvelopeRefused):
                verify(envelope, [key])
        assert public_keys() == [new_public, old_public]

    def test_a_retired_key_signs_nothing_and_stays_valid(self):
        old, new = make_key(age=60), make_key()
        envelope = sign(TYPE, b"x")
        retired = retire_signing_key(new.key_id, cause=Cause(OPERATOR, "lost"))
        assert signer_of(sign(TYPE, b"y")) == old.key_id
        assert verify(envelope, public_keys()) == b"x"
        again = retire_signing_key(new.key_id[:8], cause=Cause(OPERATOR, "twice"))
        assert again.retired_at == retired.retired_at
        assert OperatorEvent.objects.filter(action="signing_key.retired").count() == 1

    def test_without_a_key_that_may_sign_there_is_no_signature(self, folder):
        key = make_key()
        retire_signing_key(key.key_id, cause=Cause(OPERATOR, "lost"))
        with pytest.raises(SigningKeyError, match="signingkey new"):
            sign(TYPE, b"x")
        other = make_key()
        (folder / f"{other.key_id}.pem").unlink()
        with pytest.raises(SigningKeyError, match="Copy the file"):
            sign(TYPE, b"x")
        assert SigningKey.objects.count() == 2

    def test_an_unknown_or_ambiguous_id_is_refused(self):
        make_key()
        for identifier in ("", "zz"):
            with pytest.raises(SigningKeyError, match="No key"):
                retire_signing_key(identifier, cause=Cause(OPERATOR, "x"))

    def test_a_file_that_others_can_read_is_refused(self, folder):
        path = folder / f"{make_key().key_id}.pem"
        path.chmod(0o640)
        with pytest.raises(SigningKeyError, match="0600"):
            sign(TYPE, b"x")

    def test_a_file_with_another_content_is_refused(self, folder):
        path = folder / f"{make_key().key_id}.pem"
        curve = pem(generate_private_key(SECP256R1()))
        for content, text in ((pem(MINE), "another key"), ("x", "not the PEM"), (curve, "Ed25519")):
            path.write_text(content)
            with pytest.raises(SigningKeyError, match=text):
                sign(TYPE, b"x")

    def test_a_mounted_key_signs_instead_of_files(self, settings, folder):
        settings.SIGNING_KEY = pem(MINE)
        assert signer_of(sign(TYPE, b"x")) == key_id(MINE.public_key()) == SigningKey.objects.get().key_id
        assert signer_of(sign(TYPE, b"y")) == key_id(MINE.public_key())
        assert not folder.exists()
        with pytest.raises(SigningKeyError, match="SIGNING_KEY is set"):
            make_key()
        retire_signing_key(key_id(MINE.public_key()), cause=Cause(OPERATOR, "lost"))
        with pytest.raises(SigningKeyError, match="retired"):
            sign(TYPE, b"x")

    def test_the_command_creates_lists_and_retires(self, folder):
        printed = run("new", "--reason", "first")
        key = SigningKey.objects.get()
        assert printed == f"{key.key_id} signs from now on\n{key.public_pem}"
        assert OperatorEvent.objects.get().reason == "first"
        assert "active  private key here" in run("list")
        assert key.public_pem in run("list", "--pem")
        (folder / f"{key.key_id}.pem").unlink()
        assert "private key not here" in run("list")
        assert run("retire", key.key_id[:10], "--reason", "lost") == f"{key.key_id} is retired\n"
        assert "retired 2" in run("list")
        with pytest.raises(CommandError, match="No key"):
            run("retire", "zz", "--reason", "x")

    def test_the_public_keys_are_published_for_everybody(self):
        old, new = make_key(age=60), make_key()
        retire_signing_key(old.key_id, cause=Cause(OPERATOR, "old"))
        answer = Caller("").get("/v1/keys")
        assert answer.status_code == 200
        shown = json.loads(answer.content)["keys"]
        assert [(key["key_id"], key["is_retired"]) for key in shown] == [(new.key_id, False), (old.key_id, True)]
        assert [key_id(read_public_key(key["public_key"])) for key in shown] == [new.key_id, old.key_id]
        assert "PRIVATE" not in answer.content.decode()


@pytest.mark.django_db(transaction=True)
def test_of_many_first_signatures_one_creates_the_key(folder):
    start, signers = threading.Barrier(6), []

    def worker():
        try:
            start.wait()
            signers.append(signer_of(sign(TYPE, b"x")))
        finally:
            connection.close()

    threads = [threading.Thread(target=worker) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert signers == [SigningKey.objects.get().key_id] * 6
    assert len(list(Path(folder).iterdir())) == 1
