"""Contract 1.1 to 1.3: the form of keys, runners, server admins, and callers of project endpoints."""

import re
from datetime import timedelta

import jwt
import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client, RequestFactory
from django.urls import get_resolver
from django.utils import timezone
from rest_framework.request import Request

from orchestrator.core.cause import Cause
from orchestrator.http.errors.problems import ApiError
from orchestrator.http.observability.log_redaction import redacted
from orchestrator.protocols.bencher.authentication import (
    INVALID_HEADER,
    INVALID_KEY,
    INVALID_KEY_FORMAT,
    OptionalCallerAuthentication,
    authenticate_runner,
)
from orchestrator.services import credentials, personal_keys, worker_state
from orchestrator.services.personal_keys import ALGORITHM, AUDIENCE, JWT_LIFETIME, _signing_keys
from orchestrator.services.tenants import create_own_project
from runtime_jobs.errors import Invalid
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import ApiToken, Membership, OperatorEvent, PersonalKey
from tests.api_client import Caller
from tests.db_snapshot import nothing_lost
from tests.factories import (
    OPERATOR,
    OrganizationFactory,
    ProjectFactory,
    RunnerFactory,
    WorkerFactory,
    api_token,
    personal_key,
    project_key,
)
from tests.orchestrator.protocols.bencher.conftest import error_of, make_server_admin, refused
from tests.orchestrator.protocols.native.test_tenants import ROUTES, methods_of
from workers.models import Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import (
    RUNNER_PREFIX,
    WORKER_PREFIX,
    digest_of,
    has_runner_key_shape,
    new_key,
    new_token,
)

pytestmark = pytest.mark.django_db
OLD_TOKEN = RUNNER_PREFIX + "0123456789abcdef" * 4


# --- 1.1 the form of runner keys --------------------------------------------------------------------------------------


def test_a_key_has_45_characters_and_30_of_them_are_random():
    keys = {new_key(RUNNER_PREFIX) for _ in range(500)}
    assert len(keys) == 500
    assert all(re.fullmatch(r"bencher_runner_[0-9A-Za-z]{30}", key) and len(key) == 45 for key in keys)
    assert len({character for key in keys for character in key[15:]}) == 62


@pytest.mark.parametrize(
    ("key", "is_valid"),
    [
        (RUNNER_PREFIX + "aB3" * 10, True),
        (OLD_TOKEN, True),
        (OLD_TOKEN.upper(), False),
        (RUNNER_PREFIX + "A" * 64, False),
        (RUNNER_PREFIX + "a" * 29, False),
        (RUNNER_PREFIX + "a" * 31, False),
        (RUNNER_PREFIX + "a" * 63, False),
        (RUNNER_PREFIX + "a" * 29 + "-", False),
        (RUNNER_PREFIX + "a" * 29 + "é", False),
        (RUNNER_PREFIX + "a" * 30 + "\n", False),
        ("bencher_user_" + "a" * 30, False),
        ("a" * 45, False),
    ],
)
def test_45_and_79_characters_are_accepted_and_nothing_else(key, is_valid):
    assert has_runner_key_shape(key) == is_valid


def test_the_hash_of_the_whole_key_is_stored_and_nothing_else(ada):
    key = ada.post("/v0/runners", {"name": "a"}).json()["key"]
    row = Worker.objects.values().get()
    assert row["digest"] == digest_of(key)
    assert re.fullmatch("[0-9a-f]{64}", row["digest"])
    assert not [column for column, value in row.items() if key[15:] in str(value)]


# --- 1.2 runners ------------------------------------------------------------------------------------------------------


def refusal(header, ref="rack-7") -> tuple[int, str]:
    with pytest.raises(ApiError) as caught, nothing_lost():
        authenticate_runner(header, ref)
    return caught.value.status, caught.value.detail


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic {key}", "{key}", "Token {key}"])
def test_a_missing_or_other_header_is_401(runner, header):
    sent = header and header.format(key=runner.token)
    assert refusal(sent) == (401, INVALID_HEADER)


@pytest.mark.parametrize(
    "text", ["x", "{key}x", "bencher_user_{rest}", "{upper}", "{key} {key}", "rto_worker_" + "x" * 43]
)
def test_another_format_is_401(runner, text):
    key = runner.token
    sent = text.format(key=key, rest=key.removeprefix(RUNNER_PREFIX), upper=key.upper())
    assert refusal(f"Bearer {sent}") == (401, INVALID_KEY_FORMAT)


def test_an_unknown_key_is_401(runner):
    assert refusal(f"Bearer {new_key(RUNNER_PREFIX)}") == (401, INVALID_KEY)
    assert refusal(f"Bearer {OLD_TOKEN}") == (401, INVALID_KEY)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_has_no_case_and_the_value_is_trimmed(runner, scheme):
    assert authenticate_runner(f"{scheme}  {runner.token} ", "rack-7").pk == runner.pk


def test_a_key_opens_the_path_of_its_runner_by_uuid_and_slug(runner):
    for ref in ("rack-7", str(uuid_of(runner.worker_id))):
        assert authenticate_runner(f"Bearer {runner.token}", ref).pk == runner.pk


def test_a_token_of_79_characters_is_accepted():
    runner = RunnerFactory(token=OLD_TOKEN)
    assert authenticate_runner(f"Bearer {OLD_TOKEN}", runner.slug).pk == runner.pk


def test_the_path_of_another_runner_an_archived_and_a_rotated_key_look_alike(ada, runner):
    other = RunnerFactory()
    assert refusal(f"Bearer {runner.token}", other.slug) == (401, INVALID_KEY)
    assert refusal(f"Bearer {runner.token}", str(other.uuid)) == (401, INVALID_KEY)
    assert refusal(f"Bearer {runner.token}", "absent") == (401, INVALID_KEY)
    new = ada.post("/v0/runners/rack-7/key").json()["key"]
    assert refusal(f"Bearer {runner.token}") == (401, INVALID_KEY)
    ada.call("PATCH", "/v0/runners/rack-7", {"archived": True})
    assert refusal(f"Bearer {new}") == (401, INVALID_KEY)


def test_a_restored_runner_has_its_key_again(ada, runner):
    for archived in (True, False):
        ada.call("PATCH", "/v0/runners/rack-7", {"archived": archived})
    assert authenticate_runner(f"Bearer {runner.token}", "rack-7").pk == runner.pk


def test_a_revoked_runner_is_401(runner):
    worker_state.set_worker_state(worker_id=runner.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR))
    assert refusal(f"Bearer {runner.token}") == (401, INVALID_KEY)


@pytest.mark.parametrize("state", [WorkerState.DRAINING, WorkerState.MAINTENANCE])
def test_a_drained_runner_is_authenticated(runner, state):
    worker_state.set_worker_state(worker_id=runner.worker_id, state=state, cause=Cause(OPERATOR))
    assert authenticate_runner(f"Bearer {runner.token}", "rack-7").pk == runner.pk


def test_a_runner_is_found_by_one_query(runner, django_assert_num_queries):
    Worker.objects.update(last_seen_at=timezone.now())
    touched = 1
    with django_assert_num_queries(1 + touched):
        assert authenticate_runner(f"Bearer {runner.token}", "rack-7").pool.slug == "bare-metal"


def test_a_path_that_is_no_id_is_400(runner):
    assert refusal(f"Bearer {runner.token}", "A b")[0] == 400


def test_the_native_token_of_a_worker_opens_no_path_of_an_agent():
    worker = RunnerFactory(token=new_token(WORKER_PREFIX))
    assert refusal(f"Bearer {worker.token}", worker.slug) == (401, INVALID_KEY_FORMAT)


def test_a_worker_of_another_pool_is_no_runner():
    worker = WorkerFactory(token=new_key(RUNNER_PREFIX))
    assert refusal(f"Bearer {worker.token}", worker.slug) == (401, INVALID_KEY)


def test_authentication_is_a_heartbeat(ada, runner):
    authenticate_runner(f"Bearer {runner.token}", "rack-7")
    assert ada.get("/v0/runners/rack-7").json()["last_heartbeat"]


def test_too_many_invalid_keys_of_a_network_are_429(runner, settings):
    settings.BAD_TOKENS_PER_MINUTE = 2
    statuses = []
    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            authenticate_runner(f"Bearer {new_key(RUNNER_PREFIX)}", "rack-7", network="192.0.2.1")
        statuses.append(caught.value.status)
    assert statuses == [401, 401, 429]
    assert authenticate_runner(f"Bearer {runner.token}", "rack-7", network="192.0.2.2").pk == runner.pk


# --- a runner's key outside of its own path -----------------------------------------------------------------------------


def native_paths() -> list[str]:
    """The paths of all APIs but this one, with an id where they have a parameter."""
    found = []
    for pattern in get_resolver().url_patterns:
        prefix = str(pattern.pattern)
        if prefix in {"v1/", "api/v1/"}:
            found += [f"/{prefix}{path}" for path in paths_of(pattern)]
    assert len(found) > 40
    return sorted(set(found))


def paths_of(resolver) -> list[str]:
    found = []
    for pattern in resolver.url_patterns:
        text = re.sub(r"<[^>]+>", "x", str(pattern.pattern))
        found += [text + rest for rest in paths_of(pattern)] if hasattr(pattern, "url_patterns") else [text]
    return found


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "PUT", "DELETE"])
def test_a_runner_key_opens_the_native_endpoints_of_workers_and_no_other(runner, method):
    """A runner is a worker: wherever a worker's token is refused or accepted, its key is."""
    worker = WorkerFactory()
    archived = Caller(RunnerFactory(state=WorkerState.ARCHIVED, archived_at=timezone.now()).token)
    accepted = set()
    for path in native_paths():
        if "^" in path:
            continue
        with nothing_lost():
            found, wanted = (Caller(token).call(method, path, {}).status_code for token in (runner.token, worker.token))
            refused_status = archived.call(method, path, {}).status_code
        assert found == wanted, path
        assert refused_status == Caller("rto_worker_" + "x" * 43).call(method, path, {}).status_code, path
        accepted |= {path} if found not in {401, 403, 404, 405} else set()
    known = ("/v1/runtime/", "/api/v1/internal/", "/v1/schema", "/v1/docs", "/v1/keys")
    assert {path for path in accepted if not path.startswith(known)} == set()


@pytest.mark.parametrize("path", ["/v0/runners", "/v0/specs", "/v0/runners/rack-7", "/v0/specs/two-cores"])
def test_a_runner_key_is_a_malformed_token_on_endpoints_of_people(runner, spec, path):
    caller = Caller(runner.token)
    refused(lambda: caller.get(path), 400)
    refused(lambda: caller.call("PATCH" if path.count("/") == 3 else "POST", path, {"name": "b"}), 400)


@pytest.mark.parametrize("path", ["/v0/runners/rack-7/key", "/v0/runners/rack-7/token", "/v0/runners/rack-7/specs"])
def test_a_runner_cannot_rotate_its_key_nor_choose_its_specs(runner, path):
    refused(lambda: Caller(runner.token).post(path, {"spec": "a"}), 400)


def test_the_admin_does_not_know_a_runner_key(runner):
    assert Client().get("/admin/", headers={"Authorization": f"Bearer {runner.token}"}).status_code == 302


# --- no key in logs and lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["bencher_runner_", "bencher_user_", "bencher_run_"])
def test_no_log_line_contains_a_key(prefix):
    key = new_key(prefix)
    for text in (key, f"Bearer {key}", f"x={key[:-5]}", f'"{key}"'):
        assert key[len(prefix) : -5] not in redacted(text)
        assert "ben:" in redacted(text)
    assert OLD_TOKEN[15:40] not in redacted(f"runner {OLD_TOKEN} failed")


def test_no_log_line_contains_a_json_web_token(db):
    token = personal_key(make_server_admin(), is_jwt=True)
    head, payload, signature = token.split(".")
    for part in (payload, signature):
        assert part not in redacted(f"GET /v0/runners {token} failed")
    assert head not in redacted(token)


@pytest.mark.parametrize("prefix", ["bencher_runner_", "bencher_user_", "bencher_run_"])
def test_a_key_in_a_query_is_refused(ada, prefix):
    assert "Revoke it" in refused(lambda: ada.get(f"/v0/runners?key={new_key(prefix)}"), 400)


def test_no_list_contains_a_key_or_its_digest(ada, runner):
    for path in ("/v0/runners", "/v0/runners/rack-7", "/v0/runners/rack-7/specs"):
        text = ada.get(path).content.decode()
        assert runner.token not in text
        assert runner.digest not in text


# --- 1.3 people -------------------------------------------------------------------------------------------------------

PATH = "/v0/runners"


def answer(header: str | None):
    return Client(raise_request_exception=False).get(PATH, headers={"Authorization": header} if header else {})


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic x"])
def test_without_a_bearer_header_the_status_is_400(db, header):
    assert INVALID_HEADER in error_of(answer(header), 400)["message"]


@pytest.mark.parametrize("token", ["x", "a.b", "a.b.c", "eyJhbGciOiJIUzI1NiJ9.e30.x", "é", "x" * 5000])
def test_a_malformed_token_is_400(db, token):
    error_of(answer(f"Bearer {token}"), 400)


def test_a_native_token_is_400(db):
    error_of(answer(f"Bearer {api_token(OrganizationFactory())}"), 400)
    error_of(answer(f"Bearer {WorkerFactory().token}"), 400)


def signed(user_id, *, key: bytes | None = None, algorithm: str = ALGORITHM, **claims) -> str:
    now = int(timezone.now().timestamp())
    values = {"aud": AUDIENCE, "iat": now, "exp": now + 60, "sub": str(user_id)} | claims
    values = {name: value for name, value in values.items() if value is not None}
    key = None if algorithm == "none" else key or next(_signing_keys())
    return jwt.encode(values, key, algorithm=algorithm)


def test_an_expired_token_is_400(db):
    error_of(answer(f"Bearer {signed(make_server_admin().pk, exp=1)}"), 400)


@pytest.mark.parametrize(
    "forgery",
    [
        {"key": b"x" * 32},
        {"key": settings.SECRET_KEY.encode()},
        {"aud": "oci_runner"},
        {"aud": None},
        {"exp": None},
        {"sub": None},
        {"algorithm": "HS512", "key": b"x" * 64},
        {"algorithm": "none"},
    ],
)
def test_a_forged_token_is_400(db, forgery):
    error_of(answer(f"Bearer {signed(make_server_admin().pk, **forgery)}"), 400)


def test_the_token_of_an_unknown_user_is_404(db):
    error_of(answer(f"Bearer {signed(10**6)}"), 404)


@pytest.mark.parametrize("is_jwt", [True, False])
def test_the_key_of_a_locked_user_is_403(db, is_jwt):
    user = make_server_admin()
    key = personal_key(user, is_jwt=is_jwt)
    assert answer(f"Bearer {key}").status_code == 200
    User.objects.update(is_active=False)
    error_of(answer(f"Bearer {key}"), 403)


@pytest.mark.parametrize("is_jwt", [True, False])
def test_a_revoked_key_is_401(db, is_jwt):
    key = personal_key(make_server_admin(), is_jwt=is_jwt)
    personal_keys.revoke_personal_key(key_id=PersonalKey.objects.get().pk, cause=Cause(OPERATOR, "leaked"))
    response = answer(f"Bearer {key}")
    error_of(response, 401)
    assert response["WWW-Authenticate"].startswith("Bearer ")


def test_a_token_without_a_row_is_401(db):
    """Its row was deleted: nothing could revoke it any more."""
    error_of(answer(f"Bearer {signed(make_server_admin().pk)}"), 401)


@pytest.mark.parametrize("key", ["bencher_user_" + "x" * 30, "bencher_user_", "bencher_user_é"])
def test_an_unknown_personal_key_is_401(db, key):
    error_of(answer(f"Bearer {key}"), 401)


def test_an_expired_personal_key_is_401(db):
    key = personal_key(make_server_admin(), expires_at=timezone.now() - timedelta(seconds=1))
    error_of(answer(f"Bearer {key}"), 401)


@pytest.mark.parametrize("is_jwt", [True, False])
def test_who_is_no_admin_is_403(db, is_jwt):
    plain = User.objects.create(username="uma")
    staff = User.objects.create(username="stan", is_staff=True)
    permitted = User.objects.create(username="pam")
    permitted.user_permissions.add(Permission.objects.get(codename="change_worker"))
    for user in (plain, staff, permitted):
        error_of(answer(f"Bearer {personal_key(user, is_jwt=is_jwt)}"), 403)


OF_ADMINS = [
    ("GET", "/v0/runners"),
    ("POST", "/v0/runners"),
    ("GET", "/v0/runners/rack-7"),
    ("PATCH", "/v0/runners/rack-7"),
    ("POST", "/v0/runners/rack-7/key"),
    ("POST", "/v0/runners/rack-7/token"),
    ("GET", "/v0/runners/rack-7/specs"),
    ("POST", "/v0/runners/rack-7/specs"),
    ("DELETE", "/v0/runners/rack-7/specs/two-cores"),
    ("GET", "/v0/specs"),
    ("POST", "/v0/specs"),
    ("GET", "/v0/specs/two-cores"),
    ("PATCH", "/v0/specs/two-cores"),
    ("DELETE", "/v0/specs/two-cores"),
]
OF_AGENTS = {"/v0/runners/rack-7/channel", "/v0/runners/rack-7/jobs", "/v0/runners/rack-7/jobs/<job>"}


def test_no_address_of_runners_and_specs_is_forgotten():
    """Each is for server admins, or for the agent of the runner."""
    found = set()
    for route, view in ROUTES:
        path = route.replace("<runner>", "rack-7").replace("<spec>", "two-cores")
        if path.startswith(("/v0/runners", "/v0/specs")) and path not in OF_AGENTS:
            found |= {(method, path) for method in methods_of(view)}
    assert found == set(OF_ADMINS)


@pytest.mark.parametrize(("method", "path"), OF_ADMINS)
def test_every_endpoint_is_for_server_admins_only(uma, runner, spec, method, path):
    body = None if method in {"GET", "DELETE"} else {"name": "x", "spec": "two-cores"}
    refused(lambda: uma.call(method, path, body), 403)
    refused(lambda: Caller().call(method, path, body), 400)


def test_a_superuser_and_a_server_admin_are_admitted(db):
    root = User.objects.create(username="root", is_staff=True, is_superuser=True)
    for user in (root, make_server_admin()):
        for is_jwt in (True, False):
            assert answer(f"Bearer {personal_key(user, is_jwt=is_jwt)}").status_code == 200


def test_a_browser_session_is_no_credential(db):
    browser = Client()
    browser.force_login(User.objects.create(username="root", is_staff=True, is_superuser=True))
    error_of(browser.get(PATH), 400)


def test_a_token_of_a_former_secret_key_is_accepted(db, settings):
    token = personal_key(make_server_admin(), is_jwt=True)
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "x" * 50
    assert answer(f"Bearer {token}").status_code == 200
    settings.SECRET_KEY_FALLBACKS = []
    error_of(answer(f"Bearer {token}"), 400)


def test_a_json_web_token_always_expires(db):
    personal_key(make_server_admin(), is_jwt=True)
    row = PersonalKey.objects.get()
    assert row.expires_at.timestamp() == pytest.approx((timezone.now() + JWT_LIFETIME).timestamp(), abs=60)


def test_keys_of_people_are_in_the_audit_log_without_the_key(db):
    for is_jwt in (True, False):
        key = personal_key(make_server_admin(f"ada-{is_jwt}"), is_jwt=is_jwt)
        assert key not in str(list(OperatorEvent.objects.values()))
        assert digest_of(key) not in str(list(OperatorEvent.objects.values()))
    row = PersonalKey.objects.first()
    for _ in range(2):
        personal_keys.revoke_personal_key(key_id=row.pk, cause=Cause(OPERATOR, "left"))
    assert list(OperatorEvent.objects.order_by("pk").values_list("action", "reason")) == [
        ("personal_key.created", ""),
        ("personal_key.created", ""),
        ("personal_key.revoked", "left"),
    ]


# --- 1.3 callers of project endpoints ---------------------------------------------------------------------------------


def optional_caller(header: str | None):
    headers = {} if header is None else {"Authorization": header}
    return OptionalCallerAuthentication().authenticate(Request(RequestFactory().get("/", headers=headers)))[0]


def optional_refusal(header: str) -> int:
    with pytest.raises(ApiError) as caught:
        optional_caller(header)
    return caught.value.status


def test_without_a_header_the_caller_is_anonymous_and_sees_no_private_project(db):
    caller = optional_caller(None)
    assert not caller.is_authenticated
    assert not caller.can_see(ProjectFactory())


@pytest.mark.parametrize("token", ["x", "a.b.c", "bencher_run_" + "x" * 30, "bencher_user_" + "x" * 30, "rto_api_x"])
def test_a_malformed_or_unknown_key_is_401(db, token):
    assert optional_refusal(f"Bearer {token}") == 401
    assert optional_refusal("Basic x") == 401


def test_a_project_key_sees_its_project_only(db):
    project, sibling = ProjectFactory(), ProjectFactory(slug="other")
    caller = optional_caller(f"Bearer {project_key(project)}")
    assert caller.is_authenticated
    assert (caller.can_see(project), caller.can_see(sibling), caller.is_server_admin) == (True, False, False)


@pytest.mark.parametrize("column", ["revoked_at", "expires_at"])
def test_an_ended_project_key_is_401(db, column):
    key = project_key(ProjectFactory(), **{column: timezone.now() - timedelta(seconds=1)})
    assert optional_refusal(f"Bearer {key}") == 401


def test_a_member_sees_the_projects_of_the_organization(db):
    project, elsewhere = ProjectFactory(), ProjectFactory()
    user = User.objects.create(username="uma")
    Membership.objects.create(user=user, organization=project.organization)
    caller = optional_caller(f"Bearer {personal_key(user)}")
    assert (caller.can_see(project), caller.can_see(elsewhere)) == (True, False)


@pytest.mark.parametrize(("role", "may_change"), [("viewer", False), ("operator", True), ("quota_manager", True)])
def test_a_viewer_reads_only(db, role, may_change):
    project, elsewhere = ProjectFactory(), ProjectFactory()
    user = User.objects.create(username="uma")
    Membership.objects.create(user=user, organization=project.organization, role=role)
    caller = optional_caller(f"Bearer {personal_key(user)}")
    assert (caller.can_see(project), caller.may_change(project)) == (True, may_change)
    assert not caller.may_change(elsewhere)
    created = create_own_project("mine", user=user)
    assert (created.organization == project.organization) == may_change


def test_a_project_key_opens_no_native_endpoint_and_no_endpoint_of_people(db):
    key = project_key(ProjectFactory(), scopes=["jobs:read", "jobs:write"])
    assert Caller(key).get("/v1/runtime/jobs").status_code == 401
    error_of(answer(f"Bearer {key}"), 400)


def test_a_project_key_has_no_scopes_and_is_of_its_organization(db):
    project = ProjectFactory()
    row, key = credentials.create_api_token(
        organization=project.organization, project=project, name="ci", scopes=[], cause=Cause(OPERATOR)
    )
    assert re.fullmatch(r"bencher_run_[0-9A-Za-z]{30}", key)
    assert (row.scopes, OperatorEvent.objects.get().after["project"]) == ([], "web")
    for wrong in ({"organization": OrganizationFactory(), "scopes": []}, {"scopes": ["jobs:read"]}):
        arguments = {"organization": project.organization, "project": project, "name": "ci"} | wrong
        with pytest.raises(Invalid):
            credentials.create_api_token(**arguments, cause=Cause(OPERATOR))
    assert ApiToken.objects.count() == 1
