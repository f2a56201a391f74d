"""Access to repositories: docker's token flow, runners, and tenants that must learn nothing of each other."""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID, uuid4

import jwt
import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from orchestrator.images.digests import Digest
from orchestrator.images.manifest_documents import OCI_MANIFEST
from orchestrator.images.tokens import (
    PERSON_AUDIENCE,
    RepositoryAccess,
    new_access_token,
    new_pull_token,
    read_token,
)
from runtime_jobs.models import PersonalKey
from tests.factories import RunnerFactory, api_token, personal_key, project_key
from tests.orchestrator.images.world import Docker, basic, content, error_of, manifest, stored, token
from tests.orchestrator.protocols.bencher.runs.world import new_person

pytestmark = pytest.mark.django_db
TOKEN = "/v0/auth/oci/token"
RUNNER = UUID(int=7)


@pytest.fixture
def mia(project):
    return new_person("mia", project.organization)


def challenge_of(response):
    """The parameters of the challenge in a 401."""
    error_of(response, 401, "UNAUTHORIZED")
    kind, _, parameters = response["WWW-Authenticate"].partition(" ")
    assert kind == "Bearer"
    return dict(re.findall(r'(\w+)="([^"]*)"', parameters))


def request_token(password, *scopes, method="GET"):
    if method == "POST":
        return post_form({"grant_type": "password", "username": "x", "password": password, "scope": " ".join(scopes)})
    client = Client(headers={"Authorization": basic(password)})
    return client.get(TOKEN, {"service": "localhost:61016", "scope": list(scopes)})


def post_form(form):
    return Client().generic("POST", TOKEN, urlencode(form), content_type="application/x-www-form-urlencoded")


def logged_in(password, *scopes, method="GET"):
    response = request_token(password, *scopes, method=method)
    assert response.status_code == 200, response.content
    document = response.json()
    assert document["token"] == document["access_token"]
    assert (document["expires_in"], response["Cache-Control"]) == (300, "no-store")
    return Docker(document["token"])


class TestFlow:
    @pytest.mark.parametrize("method", ["GET", "POST"])
    @pytest.mark.parametrize("name", ["slug", "uuid"])
    @pytest.mark.parametrize("credential", ["key", "jwt", "project"])
    def test_from_the_challenge_to_the_image(self, project, mia, method, name, credential):
        keys = {
            "key": lambda: personal_key(mia),
            "jwt": lambda: personal_key(mia, is_jwt=True),
            "project": lambda: project_key(project),
        }
        repository = "adapter" if name == "slug" else str(project.uuid)
        base = challenge_of(Docker(None).call("GET", ""))
        assert base == {"realm": "http://localhost:61016/v0/auth/oci/token", "service": "localhost:61016"}
        asked = challenge_of(Docker(None).call("POST", f"{repository}/blobs/uploads/"))
        assert asked == base | {"scope": f"repository:{repository}:pull,push"}
        docker = logged_in(keys[credential](), asked["scope"], method=method)
        assert docker.call("GET", "").json() == {}
        digest = docker.push_image(repository, "v1", content())
        for alias in ("adapter", str(project.uuid)):
            puller = logged_in(keys[credential](), f"repository:{alias}:pull", method=method)
            assert puller.call("GET", f"{alias}/manifests/v1")["Docker-Content-Digest"] == digest

    def test_a_pull_token_of_a_person_is_not_enough_to_push(self, project, mia):
        """The client requests another one: 401 with the scope."""
        docker = logged_in(personal_key(mia), "repository:adapter:pull")
        asked = challenge_of(docker.call("POST", "adapter/blobs/uploads/"))
        assert (asked["scope"], asked["error"]) == ("repository:adapter:pull,push", "insufficient_scope")

    def test_a_mount_asks_for_both_repositories_in_one_scope(self, project, mia):
        asked = challenge_of(Docker(None).call("POST", f"adapter/blobs/uploads/?mount={Digest.of(b'')}&from=sibling"))
        assert asked["scope"] == "repository:adapter:pull,push repository:sibling:pull"
        document = request_token(personal_key(mia), asked["scope"]).json()
        assert document["scope"] == "repository:adapter:pull,push"

    def test_scopes_of_one_repository_are_joined(self, project, mia):
        response = request_token(
            personal_key(mia), "repository:adapter:push", "repository:adapter:pull", "x", "registry:catalog:*"
        )
        assert response.json()["scope"] == "repository:adapter:pull,push"

    def test_without_a_scope_the_token_opens_the_base_only(self, project, mia):
        docker = logged_in(personal_key(mia))
        assert docker.call("GET", "").status_code == 200
        assert challenge_of(docker.call("GET", "adapter/tags/list"))["error"] == "insufficient_scope"

    def test_too_many_repositories_are_400(self, project, mia):
        scopes = [f"repository:r{n}:pull" for n in range(17)]
        assert request_token(personal_key(mia), *scopes).status_code == 400

    @pytest.mark.parametrize("grant", ["refresh_token", "authorization_code", ""])
    def test_other_grants_are_400(self, project, mia, grant):
        assert post_form({"grant_type": grant, "password": personal_key(mia)}).status_code == 400

    def test_a_name_that_could_leave_the_header_is_400(self):
        for name in ('a"b', "a b", "A", "a_b", "..", "a,b", "%0d%0aX:1", "x" * 65):
            error_of(Docker(None).call("GET", f"{name}/tags/list"), 400, "NAME_INVALID")
            asked = challenge_of(Docker(None).call("POST", f"adapter/blobs/uploads/?mount=x&from={name}"))
            assert asked["scope"] == "repository:adapter:pull,push"

    @pytest.mark.parametrize("path", ["", "x", "a/b/tags/list", "adapter/nothing", "_catalog", "../v1/jobs"])
    def test_other_paths_have_the_envelope(self, docker, path):
        if path:
            error_of(docker.call("GET", path), 404, "NAME_UNKNOWN")
        error_of(docker.call("POST", "adapter/tags/list"), 405, "UNSUPPORTED")


class TestCredentials:
    @pytest.mark.parametrize(
        "header",
        [None, "Bearer x", "Basic", "Basic !!!", "Basic " + "A" * 5, basic(""), basic("x"), basic("bencher_user_" + "0" * 30), basic("bencher_run_" + "0" * 30), basic("a.b.c"), basic("\0")],
    )  # fmt: skip
    def test_any_other_credential_is_401(self, db, header):
        headers = {"Authorization": header} if header else {}
        response = Client(headers=headers).get(TOKEN, {"scope": "repository:adapter:pull"})
        assert (response.status_code, response["WWW-Authenticate"].partition(" ")[0]) == (401, "Basic")

    def test_keys_of_other_kinds_are_401(self, project, runner):
        for key in (
            runner.token,
            api_token(project.organization),
            token(project),
            new_pull_token(RUNNER, project.uuid),
        ):
            assert request_token(key).status_code == 401

    def test_revoked_locked_and_deleted(self, project, mia):
        key, web_token = personal_key(mia), personal_key(mia, is_jwt=True)
        PersonalKey.objects.update(revoked_at=datetime.now(UTC))
        assert [request_token(one).status_code for one in (key, web_token)] == [401, 401]
        PersonalKey.objects.update(revoked_at=None)
        User.objects.update(is_active=False)
        assert [request_token(one).status_code for one in (key, web_token)] == [403, 403]

    def test_no_key_is_in_the_response(self, project, mia):
        key = personal_key(mia)
        response = request_token(key, "repository:adapter:pull,push")
        assert key not in response.content.decode() + str(response.headers)


@pytest.fixture
def runner(db):
    return RunnerFactory(slug="rack-7", name="Rack 7")


EVERYTHING = [
    ("GET", "{}/manifests/v1"), ("HEAD", "{}/manifests/v1"), ("PUT", "{}/manifests/v2"), ("DELETE", "{}/manifests/v1"),
    ("GET", "{}/blobs/{digest}"), ("HEAD", "{}/blobs/{digest}"), ("DELETE", "{}/blobs/{digest}"),
    ("POST", "{}/blobs/uploads/"), ("GET", "{}/blobs/uploads/{upload}"), ("PATCH", "{}/blobs/uploads/{upload}"),
    ("PUT", "{}/blobs/uploads/{upload}?digest={digest}"), ("DELETE", "{}/blobs/uploads/{upload}"),
    ("POST", "{}/blobs/uploads/?digest={digest}"), ("POST", "{}/blobs/uploads/?mount={digest}"),
    ("GET", "{}/tags/list"), ("GET", "{}/referrers/{digest}"),
]  # fmt: skip
PULLS = {"GET", "HEAD"}


def paths(repository, digest, upload):
    return [(method, path.format(repository, digest=digest, upload=upload)) for method, path in EVERYTHING]


def is_pull(method, path):
    return method in PULLS and "/uploads/" not in path


class TestRunners:
    """Contract 1.5."""

    @pytest.fixture
    def image(self, docker, project):
        layer = content()
        return docker.push_image("adapter", "v1", layer), Digest.of(layer), layer

    def test_a_runner_pulls_its_project_under_the_uuid(self, project, image):
        image_digest, digest, layer = image
        runner = Docker(new_pull_token(RUNNER, project.uuid))
        assert runner.call("GET", f"{project.uuid}/manifests/{image_digest}").status_code == 200
        assert runner.call("GET", f"{project.uuid}/blobs/{digest}").body == layer

    def test_the_slug_is_another_text_than_the_repository_of_the_token(self, project, image):
        error_of(Docker(new_pull_token(RUNNER, project.uuid)).call("GET", "adapter/manifests/v1"), 403, "DENIED")

    def test_another_repository_is_403_whether_or_not_it_exists(self, project, other, image):
        runner = Docker(new_pull_token(RUNNER, other.uuid))
        for name in (str(project.uuid), "adapter", str(uuid4()), "nothing", str(other.uuid).replace("-", "")):
            for method, path in paths(name, image[1], uuid4()):
                response = runner.call(method, path)
                assert response.status_code == 403, (method, path)

    def test_a_runner_pushes_and_deletes_nothing(self, project, image, docker):
        upload = docker.begin("adapter").rpartition("/")[2]
        runner = Docker(new_pull_token(RUNNER, project.uuid))
        for method, path in paths(str(project.uuid), image[1], upload):
            expected = 200 if is_pull(method, path) else 403
            assert runner.call(method, path).status_code == expected, (method, path)

    def test_an_expired_token_is_401(self, project, image):
        past = datetime.now(UTC) - timedelta(seconds=601)
        runner = Docker(new_pull_token(RUNNER, project.uuid, now=past))
        assert challenge_of(runner.call("GET", f"{project.uuid}/manifests/v1"))["error"] == "invalid_token"

    def test_the_base_is_401(self, project):
        assert challenge_of(Docker(new_pull_token(RUNNER, project.uuid)).call("GET", ""))["error"] == "invalid_token"

    def test_a_project_that_is_gone_is_404(self, db):
        absent = uuid4()
        error_of(Docker(new_pull_token(RUNNER, absent)).call("GET", f"{absent}/tags/list"), 404, "NAME_UNKNOWN")

    def test_the_key_of_a_runner_is_no_token(self, project, runner):
        assert Docker(runner.token).call("GET", "adapter/tags/list").status_code == 401


class TestTenants:
    @pytest.fixture
    def secret(self, other):
        """A blob that only the other organization has."""
        return stored(other, b"the weights of the other tenant")

    def test_without_a_token_everything_is_401(self, project, secret):
        for method, path in paths("adapter", secret, uuid4()):
            assert Docker(None).call(method, path).status_code == 401, (method, path)

    def test_a_private_project_looks_like_one_that_does_not_exist(self, other, secret, mia):
        other.visibility = "private"
        other.save()
        key = personal_key(mia)
        upload = uuid4()
        for name in ("foreign", str(other.uuid)):
            docker = logged_in(key, f"repository:{name}:pull,push", "repository:nothing:pull,push")
            for (method, path), (_, absent) in zip(
                paths(name, secret, upload), paths("nothing", secret, upload), strict=True
            ):
                real, none = docker.call(method, path), docker.call(method, absent)
                assert (real.status_code, none.status_code) == (404, 404), (method, path)
                assert real.content.replace(name.encode(), b"") == none.content.replace(b"nothing", b"")

    def test_the_token_reveals_no_foreign_project(self, other, mia):
        real = request_token(personal_key(mia), "repository:foreign:pull,push").json()
        none = request_token(personal_key(mia), "repository:nothing:pull,push").json()
        assert (real["scope"], none["scope"]) == ("", "")
        assert str(other.uuid) not in Docker(real["token"]).headers["Authorization"]
        found = [jwt.decode(one["token"], options={"verify_signature": False})["access"][0] for one in (real, none)]
        assert found[0] | {"name": ""} == found[1] | {"name": ""}

    def test_a_public_project_of_others_can_be_neither_pulled_nor_pushed(self, other, secret, mia):
        other.visibility = "public"
        other.save()
        docker = logged_in(personal_key(mia), "repository:foreign:pull,push")
        for method, path in paths("foreign", secret, uuid4()):
            error = docker.call(method, path)
            assert error.status_code == 403, (method, path)

    def test_a_foreign_blob_is_unknown(self, docker, project, secret):
        for method in ("GET", "HEAD", "DELETE"):
            assert docker.call(method, f"adapter/blobs/{secret}").status_code == 404

    def test_a_foreign_blob_is_mounted_like_one_that_does_not_exist(self, docker, other, secret, mia):
        for source in ("&from=foreign", f"&from={other.uuid}", "", "&from=adapter", "&from=../x"):
            begun = docker.call("POST", f"adapter/blobs/uploads/?mount={secret}{source}")
            absent = docker.call("POST", f"adapter/blobs/uploads/?mount={Digest.of(b'?')}{source}")
            assert (begun.status_code, absent.status_code) == (202, 202)
            assert begun.headers.keys() == absent.headers.keys()
        assert docker.call("HEAD", f"adapter/blobs/{secret}").status_code == 404

    def test_a_token_for_both_whose_owner_may_not_pull_mounts_nothing(self, project, other, secret, mia):
        docker = logged_in(personal_key(mia), "repository:adapter:pull,push", "repository:foreign:pull")
        assert docker.call("POST", f"adapter/blobs/uploads/?mount={secret}&from=foreign").status_code == 202

    def test_a_foreign_blob_cannot_be_named_by_a_manifest(self, docker, project, secret):
        body = manifest(b"the weights of the other tenant")
        error_of(docker.call("PUT", "adapter/manifests/v1", body, OCI_MANIFEST), 400, "MANIFEST_BLOB_UNKNOWN")

    def test_an_upload_of_others_does_not_exist(self, docker, stranger):
        path = stranger.begin("foreign").replace("foreign", "adapter")
        for method in ("GET", "PATCH", "DELETE"):
            error_of(docker.call(method, path), 404, "BLOB_UPLOAD_UNKNOWN")

    def test_a_project_key_opens_its_project_only(self, project, other):
        key = project_key(project)
        assert (
            request_token(key, "repository:foreign:pull", "repository:adapter:push").json()["scope"]
            == "repository:adapter:push"
        )

    def test_staff_may_pull_and_needs_a_permission_to_push(self, project):
        user = User.objects.create(username="olga", is_staff=True)
        scope = "repository:adapter:pull,push"
        assert request_token(personal_key(user), scope).json()["scope"] == "repository:adapter:pull"
        docker = logged_in(personal_key(user), scope)
        error_of(docker.call("POST", "adapter/blobs/uploads/"), 403, "DENIED")
        user.user_permissions.add(Permission.objects.get(codename="operate_job"))
        assert request_token(personal_key(user), scope).json()["scope"] == scope

    def test_a_star_requests_all_actions(self, project):
        found = request_token(project_key(project), "repository:adapter:*").json()
        assert found["scope"] == "repository:adapter:pull,push"

    def test_a_token_names_the_organization_that_uploads_are_counted_for(self, project):
        """Otherwise each project of an organization had a share of what the server receives at a time."""
        issued = request_token(project_key(project), "repository:adapter:push").json()["token"]
        assert read_token(issued).find("adapter").organization == project.organization.uuid

    def test_a_token_for_a_slug_does_not_follow_a_new_owner_of_the_name(self, project, other):
        """The token names the project by its UUID. Its name may be another project's by now."""
        access = [RepositoryAccess("adapter", other.uuid, ("pull",), ("pull",))]
        docker = Docker(new_access_token("mia", access, audience=PERSON_AUDIENCE))
        error_of(docker.call("GET", "adapter/tags/list"), 404, "NAME_UNKNOWN")

    def test_a_slug_in_the_form_of_a_uuid_is_never_a_name(self, project, other):
        other.public_slug = str(project.uuid)
        other.save()
        digest = stored(project, content())
        docker = Docker(token(project))
        assert docker.call("HEAD", f"{project.uuid}/blobs/{digest}").status_code == 200
        assert (
            Docker(new_pull_token(RUNNER, project.uuid)).call("HEAD", f"{project.uuid}/blobs/{digest}").status_code
            == 200
        )
