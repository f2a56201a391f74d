"""Signatures of webhooks: the library of the standard accepts ours, and what was changed is refused."""

import base64
import time
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook as Receiver
from standardwebhooks import WebhookVerificationError

from orchestrator.webhooks.signatures import (
    SignatureInvalid,
    key_of,
    new_key,
    secret_text,
    signed_headers,
    verify,
)

# The vector of the specification's reference libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE, BODY, TIMESTAMP = "msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', 1614265330
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
EVENT = "018f2c5e-0000-7000-8000-000000000001"


def test_the_vector_of_the_reference_libraries():
    headers = signed_headers([key_of(SECRET)], MESSAGE, TIMESTAMP, BODY)
    assert headers == {
        "webhook-id": MESSAGE,
        "webhook-timestamp": str(TIMESTAMP),
        "webhook-signature": SIGNATURE,
    }
    verify(SECRET, headers, BODY, now=TIMESTAMP + 299)


def test_the_library_of_the_standard_accepts_a_message():
    key, now = new_key(), int(time.time())
    headers = signed_headers([key], EVENT, now, BODY)
    assert Receiver(secret_text(key)).verify(BODY, headers) == {"test": 2432232314}
    assert (
        Receiver(secret_text(key)).sign(EVENT, datetime.fromtimestamp(now, UTC), BODY.decode())
        == headers["webhook-signature"]
    )


def test_a_secret_has_32_bytes():
    secret = secret_text(new_key())
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert key_of(secret) != key_of(secret_text(new_key()))


def test_during_a_rotation_both_secrets_are_right():
    current, former = new_key(), new_key()
    headers = signed_headers([current, former], EVENT, int(time.time()), BODY)
    for key in (current, former):
        Receiver(secret_text(key)).verify(BODY, headers)
        verify(secret_text(key), headers, BODY, now=time.time())
    with pytest.raises(WebhookVerificationError):
        Receiver(secret_text(new_key())).verify(BODY, headers)


RIGHT = signed_headers([key_of(SECRET)], EVENT, TIMESTAMP, BODY)


@pytest.mark.parametrize(
    ("changes", "body", "secret", "now"),
    [
        ({}, b'{"test":2432232314}', SECRET, TIMESTAMP),  # written again
        ({"webhook-id": "018f2c5e-0000-7000-8000-000000000002"}, BODY, SECRET, TIMESTAMP),
        ({"webhook-timestamp": str(TIMESTAMP + 1)}, BODY, SECRET, TIMESTAMP),
        ({}, BODY, SECRET, TIMESTAMP + 301),
        ({}, BODY, SECRET, TIMESTAMP - 301),
        ({}, BODY, secret_text(b"\0" * 32), TIMESTAMP),
        ({"webhook-signature": RIGHT["webhook-signature"].replace("v1,", "v1a,")}, BODY, SECRET, TIMESTAMP),
        ({"webhook-signature": "v1, v1 ,  junk v1,é"}, BODY, SECRET, TIMESTAMP),
        ({"webhook-signature": ""}, BODY, SECRET, TIMESTAMP),
        ({"webhook-id": ""}, BODY, SECRET, TIMESTAMP),
        ({"webhook-timestamp": "²"}, BODY, SECRET, TIMESTAMP),
        ({}, BODY, "whsec_" + base64.b64encode(b"x" * 23).decode(), TIMESTAMP),
        ({}, BODY, "whsec_!", TIMESTAMP),
    ],
)
def test_what_was_changed_is_refused(changes, body, secret, now):
    verify(SECRET, RIGHT, BODY, now=TIMESTAMP)
    with pytest.raises(SignatureInvalid):
        verify(secret, RIGHT | changes, body, now=now)


def test_a_right_signature_among_junk_is_found():
    headers = RIGHT | {"webhook-signature": f"v1a,x v2,y {RIGHT['webhook-signature']}"}
    verify(SECRET, headers, BODY, now=TIMESTAMP)
