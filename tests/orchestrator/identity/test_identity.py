"""Identity tokens: an outsider verifies them by the published keys, also after a rotation; who may not, gets none."""

import io
from datetime import timedelta

import jwt
import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from orchestrator.core.cause import Cause
from orchestrator.identity.keys import PUBLISHED_AFTER, PUBLISHED_BEFORE, ensure_identity_key, rotate_identity_key
from orchestrator.identity.request_tokens import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    InvalidRequestToken,
    may_request,
    read_request_token,
    request_environment,
)
from orchestrator.identity.tasks import rotate_regularly
from orchestrator.identity.tokens import IdentityRefused, identity_token, key_set
from orchestrator.services import worker_state
from runtime_jobs.models import IdentityKey, Job, OperatorEvent
from tests.factories import COMMIT, OPERATOR
from tests.workflow_jobs import claimed_workflow_job, make_repository

pytestmark = pytest.mark.django_db
WRITE = {"per": {"id-token": "write"}}
AUDIENCE = "https://cloud.example"


@pytest.fixture
def found():
    return claimed_workflow_job(permissions=WRITE)


def request_token(found, now=None):
    return request_environment(found.job, found.run, now=now or timezone.now())[TOKEN_VARIABLE]


def verified(token, keys, audience=AUDIENCE, issuer="http://127.0.0.1:8000"):
    """The claims of a token, as an outsider reads them who knows the issuer and its published keys alone."""
    kid = jwt.get_unverified_header(token)["kid"]
    key = next(key for key in jwt.PyJWKSet.from_dict(keys).keys if key.key_id == kid)
    # The time is checked by the caller: tests choose it.
    return jwt.decode(
        token, key.key, algorithms=["RS256"], audience=audience, issuer=issuer,
        options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
    )  # fmt: skip


def call(token, query="?audience=https://cloud.example", scheme="Bearer"):
    headers = {"Authorization": f"{scheme} {token}"} if token else {}
    return Client(raise_request_exception=False).get(f"/v1/identity/token{query}", headers=headers)


class TestToken:
    def test_an_outsider_verifies_it_by_the_documents(self, found):
        variables = request_environment(found.job, found.run, now=timezone.now())
        assert variables[URL_VARIABLE] == "http://127.0.0.1:8000/v1/identity/token?api-version=1"
        # GitHub's client appends the audience to the URL.
        path = f"{variables[URL_VARIABLE]}&audience={AUDIENCE}".removeprefix("http://127.0.0.1:8000")
        answer = Client().get(path, headers={"Authorization": f"bearer {variables[TOKEN_VARIABLE]}"})
        assert (answer.status_code, set(answer.json()), answer["Cache-Control"]) == (200, {"value"}, "no-store")
        discovery = Client().get("/.well-known/openid-configuration").json()
        assert discovery["jwks_uri"] == "http://127.0.0.1:8000/.well-known/jwks.json"
        published = Client().get("/.well-known/jwks.json")
        assert published["Cache-Control"] == "public, max-age=3600"
        claims = verified(answer.json()["value"], published.json(), issuer=discovery["issuer"])
        expected = {
            "sub": "repo:alice/demo:ref:refs/heads/trunk", "ref": "refs/heads/trunk", "ref_type": "branch", "sha": COMMIT,
            "repository": "alice/demo", "repository_owner": "alice", "repository_visibility": "private",
            "run_id": str(found.run.pk), "run_number": "1", "run_attempt": "1", "actor": "alice", "event_name": "push",
            "workflow": "ci", "workflow_ref": "alice/demo/.shithub/workflows/ci.yml@refs/heads/trunk",
            "job_id": str(found.job.pk), "runner_environment": "self-hosted", "head_ref": "", "base_ref": "",
        }  # fmt: skip
        assert {name: claims[name] for name in expected} == expected
        assert claims["exp"] - claims["iat"] == 600
        assert set(claims) <= set(discovery["claims_supported"])
        with pytest.raises(jwt.InvalidAudienceError):
            verified(answer.json()["value"], published.json(), audience="https://other.example")

    def test_the_private_key_is_not_published_nor_stored_in_plain(self, found):
        published = key_set()
        assert [set(key) for key in published["keys"]] == [{"kty", "use", "alg", "kid", "n", "e"}]
        assert b"\x30\x82" not in bytes(IdentityKey.objects.get().sealed)[:40]

    def test_the_default_audience_is_the_owner(self, found):
        answer = call(request_token(found), query="")
        claims = verified(answer.json()["value"], key_set(), audience="http://127.0.0.1:8000/alice")
        assert claims["aud"] == "http://127.0.0.1:8000/alice"

    def test_the_subject_of_a_pull_request_has_no_ref(self):
        """Whoever opens one chooses its ref: a policy for the branch `main` must not match."""
        payload = {"pull_request": {"head": {"ref": "feature"}, "base": {"ref": "trunk"}}}
        found = claimed_workflow_job(permissions=WRITE, event="pull_request", event_payload=payload)
        claims = verified(identity_token(request_token(found), AUDIENCE), key_set())
        assert (claims["sub"], claims["head_ref"], claims["base_ref"]) == (
            "repo:alice/demo:pull_request", "feature", "trunk",
        )  # fmt: skip

    def test_each_token_has_an_id_of_its_own(self, found):
        tokens = [verified(identity_token(request_token(found), AUDIENCE), key_set())["jti"] for _ in range(3)]
        assert len(set(tokens)) == 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("permissions", "allowed"),
        [
            ({}, False),
            ({"mode": "read-all"}, False),
            ({"mode": "write-all"}, True),
            ({"per": {"contents": "write"}}, False),
            ({"per": {"id-token": "read"}}, False),
            ({"per": {"id-token": "none"}}, False),
            (WRITE, True),
        ],
    )
    def test_the_workflow_must_permit_it(self, permissions, allowed):
        found = claimed_workflow_job(permissions=permissions)
        assert may_request(found.job, found.run) is allowed
        assert bool(request_environment(found.job, found.run, now=timezone.now())) is allowed

    def test_a_fork_gets_none(self):
        found = claimed_workflow_job(permissions=WRITE, from_fork=True)
        assert request_environment(found.job, found.run, now=timezone.now()) == {}

    def test_a_token_from_before_does_not_help(self, found):
        """The decision is made again at the request, from the rows."""
        token = request_token(found)
        found.run.from_fork = True
        found.run.save(update_fields=["from_fork"])
        answer = call(token)
        assert (answer.status_code, answer.json()["code"]) == (403, "identity_refused")

    def test_an_ended_job_gets_none(self, found):
        token = request_token(found)
        assert call(token).status_code == 200
        worker_state.revoke(job_ulid=found.job.job_ulid, actor=OPERATOR, reason="test")
        answer = call(token)
        assert (answer.status_code, answer.json()["code"]) == (403, "identity_refused")

    def test_a_lost_lease_gets_none(self, found):
        token = request_token(found)
        with pytest.raises(IdentityRefused):
            identity_token(token, AUDIENCE, now=found.lease.expires_at)

    def test_a_later_claim_ends_the_tokens_of_the_earlier_one(self, found):
        token = request_token(found)
        Job.objects.filter(pk=found.job.pk).update(fence=found.job.fence + 1)
        assert call(token).status_code == 403

    def test_a_token_ends_an_hour_after_the_time_limit(self, found):
        now = timezone.now()
        token = request_token(found, now)
        end = now.replace(microsecond=0) + timedelta(minutes=5, hours=1)
        assert read_request_token(token, now=end - timedelta(seconds=1)).job_id == found.job.pk
        with pytest.raises(InvalidRequestToken):
            read_request_token(token, now=end)

    @pytest.mark.parametrize(
        "token", ["", "x", "a.b.c", "x" * 100_000, jwt.encode({"job": 1, "fence": 1, "exp": 2**40}, "k" * 32)]
    )
    def test_another_token_is_refused_before_a_query(self, token, django_assert_num_queries):
        with django_assert_num_queries(0):
            answer = call(token)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer["WWW-Authenticate"].startswith("Bearer")

    def test_an_unsigned_token_is_refused(self, found):
        claims = {"job": found.job.pk, "fence": found.job.fence, "exp": 2**40}
        assert call(jwt.encode(claims, None, algorithm="none")).status_code == 401
        assert call(request_token(found), scheme="Basic").status_code == 401

    @pytest.mark.parametrize("query", ["?audience=", f"?audience={'x' * 513}", "?audience=a&audience=b", "?x=1"])
    def test_a_bad_query_is_refused(self, found, query):
        assert call(request_token(found), query=query).status_code == 400


class TestKeys:
    def test_a_new_key_is_published_before_it_signs(self, found):
        begin = timezone.now()
        ensure_identity_key(now=begin)
        (old,) = key_set(begin)["keys"]
        new = rotate_identity_key(cause=Cause(OPERATOR, "regular", now=begin))
        assert [key["kid"] for key in key_set(begin)["keys"]] == [new.kid, old["kid"]]
        before = begin + PUBLISHED_BEFORE - timedelta(seconds=1)
        assert self.kid_at(found, before) == old["kid"]
        after = begin + PUBLISHED_BEFORE
        assert self.kid_at(found, after) == new.kid

    def test_a_verifier_with_a_set_of_the_last_hour_verifies_each_token_until_its_end(self, found):
        """Over a rotation. The sets are read in the order of time, as a verifier reads and caches them."""
        begin, step = timezone.now(), timedelta(minutes=10)
        ensure_identity_key(now=begin)
        sets, tokens, kids = [], [], set()
        for number in range(6 * 28):
            now = begin + number * step
            if number == 9:
                rotate_identity_key(cause=Cause(OPERATOR, "regular", now=now))
            sets.append(key_set(now))
            tokens.append(self.token_at(found, now))
            kids.add(jwt.get_unverified_header(tokens[-1])["kid"])
            for cached in sets[-7:]:  # up to an hour old
                assert verified(tokens[-1], cached)["repository"] == "alice/demo"
            assert verified(tokens[max(number - 1, 0)], sets[-1])  # at its end, ten minutes later
        assert len(kids) == 2

    def test_a_replaced_key_is_withdrawn_after_the_last_token(self, found):
        begin = timezone.now()
        ensure_identity_key(now=begin)
        new = rotate_identity_key(cause=Cause(OPERATOR, "regular", now=begin))
        end = begin + PUBLISHED_BEFORE + PUBLISHED_AFTER
        assert len(key_set(end - timedelta(seconds=1))["keys"]) == 2
        assert [key["kid"] for key in key_set(end)["keys"]] == [new.kid]
        rotate_identity_key(cause=Cause(OPERATOR, "again", now=end))
        assert IdentityKey.objects.count() == 2  # the withdrawn one is deleted

    def test_an_urgent_rotation_withdraws_all_others_at_once(self, found):
        begin = timezone.now()
        ensure_identity_key(now=begin)
        token = self.token_at(found, begin)
        rotate_identity_key(cause=Cause(OPERATOR, "leaked", now=begin), is_urgent=True)
        with pytest.raises(StopIteration):
            verified(token, key_set(begin))
        assert verified(self.token_at(found, begin), key_set(begin))

    def test_housekeeping_replaces_an_old_key_once(self, settings):
        settings.IDENTITY_KEY_DAYS = 90
        ensure_identity_key(now=timezone.now() - timedelta(days=91))
        rotate_regularly("")
        rotate_regularly("")
        assert IdentityKey.objects.count() == 2
        event = OperatorEvent.objects.get()
        assert (event.action, event.actor) == ("identity_key.rotated", "core:housekeeping")
        settings.IDENTITY_KEY_DAYS = 0
        IdentityKey.objects.update(created_at=timezone.now() - timedelta(days=91))
        rotate_regularly("")
        assert IdentityKey.objects.count() == 2

    def test_the_command_rotates(self):
        ensure_identity_key()
        call_command("rotateidentitykey", "--reason", "test", stdout=(out := io.StringIO()))
        new = IdentityKey.objects.latest("pk")
        assert out.getvalue() == f"{new.kid} signs from {new.signs_from:%Y-%m-%d %H:%M:%S} UTC.\n"

    def test_the_first_key_is_created_once(self):
        ensure_identity_key()
        ensure_identity_key()
        assert IdentityKey.objects.count() == 1

    @staticmethod
    def token_at(found, now):
        found.lease.__class__.objects.filter(pk=found.lease.pk).update(expires_at=now + timedelta(minutes=1))
        return identity_token(request_token(found, now), AUDIENCE, now=now)

    def kid_at(self, found, now):
        return jwt.get_unverified_header(self.token_at(found, now))["kid"]


def test_the_repository_decides_the_claims(db):
    found = claimed_workflow_job(
        make_repository(owner="Bob", name="tool", is_private=False), permissions=WRITE, head_ref="refs/tags/v1"
    )
    claims = verified(identity_token(request_token(found), AUDIENCE), key_set())
    assert (claims["sub"], claims["ref_type"], claims["repository_visibility"]) == (
        "repo:Bob/tool:ref:refs/tags/v1", "tag", "public",
    )  # fmt: skip
