"""Sealed values open at their own place only, with the current root key or a former one."""

import base64
import os
import stat
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from config.paths import BASE_DIR
from orchestrator import checks
from orchestrator.core import sealing
from orchestrator.core.sealing import SealedValueError, derived_keys, is_current, seal, unseal

FIRST, SECOND = b"\x42" * 32, b"\x99" * 32


def text_of(key: bytes) -> str:
    return base64.b64encode(key).decode()


@pytest.fixture(autouse=True)
def root_key(settings):
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = text_of(FIRST), []


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (FIRST, "f7f283dae5e782a4f26b8f4157c5ad6a0275b1dfc5df2dbea48714d8b17c23b6"),
        (SECOND, "840583e8578e2fb7028395cc0fab8c3145d13272a7224771505d047d93d969c8"),
    ],
)
def test_the_key_of_job_tokens_is_that_of_the_contract(settings, key, expected):
    settings.ACTIONS_ROOT_KEY = text_of(key)
    assert [derived.hex() for derived in derived_keys("actions-runner-jwt-v1")] == [expected]


def test_the_current_key_is_the_first_of_the_derived_ones(settings):
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = text_of(SECOND), [text_of(FIRST), text_of(SECOND)]
    keys = derived_keys("actions-runner-jwt-v1")
    assert [key.hex()[:8] for key in keys] == ["840583e8", "f7f283da"]  # each once


def test_no_caller_derives_a_key_of_sealed_values():
    for label in ("sealing-v1:secret", "root-key-id-v1"):
        with pytest.raises(ValueError, match="reserved"):
            derived_keys(label)


@given(data=st.binary(max_size=200), context=st.text(max_size=50))
def test_a_sealed_value_opens_and_reveals_nothing(data, context):
    sealed = seal("secret", data, context=context)
    assert unseal("secret", memoryview(sealed), context=context) == data
    assert len(sealed) == len(data) + sealing.OVERHEAD_BYTES
    assert len(data) < 4 or data not in sealed


def test_two_values_with_one_content_differ():
    assert len({seal("secret", b"hunter2", context="a") for _ in range(100)}) == 100


@pytest.mark.parametrize(("purpose", "context"), [("secret", "org/other"), ("masks", "org/name"), ("secret", "")])
def test_a_value_does_not_open_at_another_place(purpose, context):
    sealed = seal("secret", b"hunter2", context="org/name")
    with pytest.raises(SealedValueError, match="another place"):
        unseal(purpose, sealed, context=context)


def test_each_changed_byte_is_found():
    sealed = seal("secret", b"hunter2", context="a")
    for place in range(len(sealed)):
        altered = bytearray(sealed)
        altered[place] ^= 1
        with pytest.raises(SealedValueError):
            unseal("secret", bytes(altered), context="a")
    for length in range(len(sealed)):
        with pytest.raises(SealedValueError):
            unseal("secret", sealed[:length], context="a")


def test_the_associated_data_is_authenticated_beside_the_key_of_the_context(monkeypatch):
    """With one key for all contexts a value would still not open under another name."""
    monkeypatch.setattr(sealing, "_context_key", lambda *_: b"k" * 32)
    sealed = seal("secret", b"hunter2", context="org/name")
    assert unseal("secret", sealed, context="org/name") == b"hunter2"
    with pytest.raises(SealedValueError):
        unseal("secret", sealed, context="org/other")
    with pytest.raises(SealedValueError):
        unseal("masks", sealed, context="org/name")


def test_contexts_have_keys_of_their_own(monkeypatch):
    """Without associated data a value would still not open under another name."""
    monkeypatch.setattr(sealing, "_associated_data", lambda *_: b"")
    sealed = seal("secret", b"hunter2", context="org/name")
    with pytest.raises(SealedValueError):
        unseal("secret", sealed, context="org/other")
    with pytest.raises(SealedValueError):
        unseal("masks", sealed, context="org/name")


def test_a_former_root_key_opens_and_does_not_seal(settings):
    sealed = seal("secret", b"hunter2", context="a")
    assert is_current(sealed)
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = text_of(SECOND), [text_of(FIRST)]
    assert unseal("secret", sealed, context="a") == b"hunter2"
    assert not is_current(sealed)
    again = seal("secret", b"hunter2", context="a")
    assert is_current(again)
    settings.ACTIONS_ROOT_KEYS_OLD = []
    assert unseal("secret", again, context="a") == b"hunter2"
    with pytest.raises(SealedValueError, match="ACTIONS_ROOT_KEYS_OLD"):
        unseal("secret", sealed, context="a")


@pytest.mark.parametrize("value", [b"", b"hunter2", b"\x02" + b"x" * 60])
def test_bytes_that_were_never_sealed_are_refused(value):
    with pytest.raises(SealedValueError, match="not sealed"):
        unseal("secret", value, context="a")


@pytest.mark.parametrize("purpose", ["", "Secret", "a b", "a\0b", "x" * 64])
def test_a_purpose_is_a_plain_word(purpose):
    with pytest.raises(ValueError, match="purpose"):
        seal(purpose, b"", context="a")


KEY = bytes(range(224, 256))  # its base64 has characters that differ between the alphabets


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(KEY).decode(),
        base64.b64encode(KEY).decode().rstrip("="),
        base64.urlsafe_b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode().rstrip("="),
        f" {base64.b64encode(KEY).decode()}\n",
    ],
)
def test_a_root_key_may_have_any_form_of_base64(text):
    assert sealing.decode_root_key(text) == KEY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sesame!", "it is not base64"),
        ("schl\u00fcssel", "it is not base64"),
        (text_of(b"x" * 31), "it has 31 bytes instead of 32"),
        (text_of(b"x" * 33), "it has 33 bytes instead of 32"),
    ],
)
def test_a_bad_root_key_is_reported_by_name_without_its_value(settings, text, message):
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = text, [text]
    found = [(error.id, error.msg) for error in checks.root_keys()]
    assert found == [
        ("orchestrator.E015", f"ACTIONS_ROOT_KEY must be 32 bytes in base64: {message}."),
        ("orchestrator.E015", f"ACTIONS_ROOT_KEYS_OLD[0] must be 32 bytes in base64: {message}."),
    ]
    with pytest.raises(ImproperlyConfigured, match="ACTIONS_ROOT_KEY: ") as caught:
        seal("secret", b"", context="a")
    assert text not in str(caught.value)


def test_without_a_setting_the_first_use_makes_a_key_that_stays(settings, tmp_path):
    settings.ACTIONS_ROOT_KEY, settings.STATE_DIR = "", tmp_path
    assert checks.root_keys() == []
    assert list(tmp_path.iterdir()) == []  # the settings and their checks make nothing
    sealed = seal("secret", b"hunter2", context="a")
    file = tmp_path / "actions_root_key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(sealing.decode_root_key(file.read_text())) == 32
    settings.ACTIONS_ROOT_KEY = file.read_text()
    assert unseal("secret", sealed, context="a") == b"hunter2"


USE = "from orchestrator.core.sealing import derived_keys; print(derived_keys('x')[0].hex())"


def test_processes_that_start_at_once_agree_on_the_key(tmp_path):
    code = f"import django, config.settings; django.setup(); {USE}"
    environment = {"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "config.settings"}
    environment["DATABASE_URL"] = "postgres://role@127.0.0.1:1/none"  # not used
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, cwd=BASE_DIR, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(4)
    ]
    outputs = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 4, outputs
    assert len({output for output, _ in outputs}) == 1
