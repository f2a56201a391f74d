"""`POST /v0/run` with a job: each rule of contract 2.11."""

import itertools
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from orchestrator.results.models import Report, Testbed
from runtime_jobs.models import Job, Membership, Organization, Plan, Project
from runtime_jobs.plans import plan_of_tier
from runtime_jobs.specs import config_of
from tests.api_client import Caller
from tests.factories import project_key
from tests.orchestrator.images.world import Docker, storages_in, token
from tests.orchestrator.protocols.bencher.runs.world import (
    BMF,
    DIGEST,
    TIMES,
    accepted,
    direct_body,
    document_body,
    job_body,
    job_of,
    new_person,
    new_project,
    new_spec,
    post_run,
    refused,
)

pytestmark = pytest.mark.django_db


class TestConfig:
    def test_the_config_of_the_least_run(self, mia, spec, project):
        job = job_of(mia, job_body(spec="two-cores"))
        assert config_of(job) == {
            "registry": "http://localhost:61016/",
            "project": str(project.uuid),
            "digest": DIGEST,
            "timeout": 3600,
            "image": f"adapter@{DIGEST}",
        }
        assert (job.state, job.job_type, job.requirements) == ("queued", "oci", [f"spec:{spec.uuid}"])
        assert (job.org_slug, job.project_slug, job.trigger_actor) == (project.organization.slug, "adapter", "mia")

    def test_every_member_of_the_job_reaches_the_config(self, mia, spec, project):
        members = {
            "entrypoint": ["/bin/bench"], "cmd": ["--all", ""], "env": {"CI": "", "B": "=x"}, "file_paths": ["/a b"],
            "build_time": True, "file_size": False, "iter": 3, "allow_failure": True,
        }  # fmt: skip
        body = job_body(spec=str(spec.uuid), timeout=17, backdate="2026-01-01T02:00:00+02:00", **members)
        body["settings"] = {"adapter": "json", "average": "median", "fold": "max"}
        config = config_of(job_of(mia, body))
        fixed = {"registry", "project", "digest", "image"}
        assert {name: value for name, value in config.items() if name not in fixed} == members | {
            "timeout": 17, "backdate": "2026-01-01T00:00:00Z", "average": "median", "fold": "max",
        }  # fmt: skip

    @pytest.mark.parametrize(
        "job",
        [
            {"entrypoint": ["x"] * 65}, {"cmd": ["x"] * 65}, {"env": {str(n): "" for n in range(256)}},
            {"file_paths": ["x"] * 256}, {"timeout": 0}, {"timeout": 2**31}, {"timeout": 1.5}, {"timeout": "60"},
            {"iter": -1}, {"iter": 2**32}, {"image": ""}, {"image": None}, {"image": "A B"}, {"env": {"": "x"}},
            {"env": []}, {"cmd": "ls"}, {"cmd": [1]}, {"build_time": "yes"}, {"backdate": "yesterday"},
            {"backdate": "9900-01-01T00:00:01Z"}, {"backdate": "9999-12-31T23:59:59-05:00"},
            {"spec": "No Slug"}, {"spec": 7},
        ],
    )  # fmt: skip
    def test_limits_exceeded_are_400(self, mia, spec, job):
        body = job_body(spec="two-cores")
        body["job"] |= job
        refused(lambda: post_run(mia, body), 400, next(iter(job)))

    @pytest.mark.parametrize(
        "job",
        [
            {"entrypoint": ["x"] * 64}, {"cmd": ["x"] * 64}, {"env": {str(n): "" for n in range(255)}},
            {"file_paths": ["x"] * 255}, {"timeout": 1}, {"timeout": 2**31 - 1}, {"iter": 0}, {"iter": 2**32 - 1},
            {"spec": None}, {"unknown": "ignored"}, {"cmd": []},
        ],
    )  # fmt: skip
    def test_limits_are_inclusive(self, mia, spec, job):
        new_spec("Fallback", fallback_at=timezone.now())
        body = job_body(spec="two-cores")
        body["job"] |= job
        accepted(mia, body)

    def test_the_config_is_never_part_of_the_report(self, mia, spec):
        body = job_body(spec="two-cores", env={"TOKEN": "sesame"})
        answer = post_run(mia, body)
        assert b"sesame" not in answer.content
        assert "config" not in answer.json()


class TestBody:
    @pytest.mark.parametrize("missing", ["start_time", "end_time", "results"])
    def test_times_and_results_are_required_keys(self, mia, spec, missing):
        body = job_body(spec="two-cores")
        del body[missing]
        refused(lambda: post_run(mia, body), 400, missing)

    def test_results_are_ignored_with_a_job(self, mia, spec):
        report = accepted(mia, job_body(spec="two-cores") | {"results": ["no format of any harness"]})
        assert report["job"] is not None
        assert not Report.objects.get().metrics.exists()

    def test_unknown_members_are_ignored(self, mia, spec):
        accepted(mia, job_body(spec="two-cores") | {"thresholds": None, "start_point": None, "x": [1]})

    def test_thresholds_and_start_points_are_refused_and_never_dropped(self, mia, spec, project):
        """A gate that is dropped in silence lets every regression pass: `bencher run … --err` would exit with 0."""
        gates = {
            "thresholds": [{"models": {"latency": {"test": "t_test", "upper_boundary": 0.95}}}, {"reset": True}, [1]],
            "start_point": [{"branch": "main", "max_versions": 255, "reset": False}, {"reset": True}, "main"],
        }
        for name, values in gates.items():
            for value, body in itertools.product(values, (job_body(spec="two-cores"), direct_body(BMF))):
                refused(lambda body=body | {name: value}: post_run(mia, body), 400, f"{name}: ", "does not support")
        for harmless in (None, {}, {"models": None, "reset": None}, {"models": {}, "reset": False}):
            accepted(mia, job_body(spec="two-cores") | dict.fromkeys(gates, harmless))

    @pytest.mark.parametrize(
        "members",
        [
            {"hash": "abc"}, {"branch": ""}, {"branch": " x"}, {"testbed": " "}, {"idempotency_key": "x"},
            {"settings": {"adapter": "dhat"}}, {"settings": {"average": "mode"}}, {"settings": {"fold": "sum"}},
            {"settings": []}, {"context": []}, {"start_time": 1}, {"results": "x"}, {"results": [1]}, {"job": []},
            {"project": "No Slug"}, {"spec_reset": 1},
        ],
    )  # fmt: skip
    def test_a_value_of_the_wrong_type_or_form_is_400(self, mia, spec, members):
        refused(lambda: post_run(mia, job_body(spec="two-cores") | members), 400, next(iter(members)))

    @pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b'{"job": "\\u0000"}'])
    def test_no_json_object_is_400(self, mia, raw):
        refused(lambda: mia.post("/v0/run", raw), 400)

    def test_other_methods_are_405(self, mia):
        assert refused(lambda: mia.get("/v0/run"), 405)
        assert mia.call("OPTIONS", "/v0/run")["Access-Control-Allow-Methods"] == "POST, OPTIONS"

    def test_the_answer_can_be_read_by_pages_of_any_site(self, mia, spec):
        answer = post_run(mia, job_body(spec="two-cores"))
        assert (answer["Access-Control-Allow-Methods"], answer["X-Total-Count"]) == ("POST", "1")


class TestProject:
    def test_an_explicit_project_beats_the_image(self, mia, spec, project):
        new_project("other")
        assert (
            job_of(mia, job_body(f"other@{DIGEST}", spec="two-cores") | {"project": "adapter"}).project_slug
            == "adapter"
        )

    @pytest.mark.parametrize(
        "image",
        [
            "adapter", "library/adapter", "docker.io/adapter", "docker.io/library/adapter", "localhost/adapter",
            "localhost:61016/adapter", "localhost:61016/{uuid}",
        ],
    )  # fmt: skip
    def test_the_repository_of_the_image_names_the_project(self, mia, spec, project, image):
        job = job_of(mia, job_body(f"{image.format(uuid=project.uuid)}@{DIGEST}", spec="two-cores"))
        assert job.project_slug == "adapter"

    def test_the_image_beats_the_context(self, mia, spec):
        context = {"bencher.dev/v0/repo/name": "elsewhere"}
        assert job_of(mia, job_body(spec="two-cores") | {"context": context}).project_slug == "adapter"

    def test_a_repository_of_several_segments_names_no_project(self, mia, spec):
        body = job_body(f"owner/adapter@{DIGEST}", spec="two-cores")
        refused(lambda: post_run(mia, body), 400, "project")
        context = {
            "bencher.dev/v0/repo/name": "The Repo", "bencher.dev/v0/repo/hash": "0123456789",
            "bencher.dev/v0/testbed/fingerprint": "ABCDEFGHIJ",
        }  # fmt: skip
        assert job_of(mia, body | {"context": context}).project_slug == "the-repo-0123456-abcdefgh"

    def test_a_uuid_that_no_project_has_is_404(self, mia, spec):
        refused(lambda: post_run(mia, job_body(spec="two-cores") | {"project": str(uuid4())}), 404)

    def test_a_new_project_of_a_member_is_private_in_the_own_organization(self, mia, spec, project):
        job = job_of(mia, job_body(f"new-one@{DIGEST}", spec="two-cores"))
        made = Project.objects.get(slug="new-one")
        assert (made.organization, made.visibility, made.enabled) == (project.organization, "private", False)
        assert (job.org_slug, config_of(job)["project"]) == (project.organization.slug, str(made.uuid))

    def test_a_person_without_organization_gets_one_on_the_plan_free(self, stranger, spec):
        job = job_of(stranger, job_body(f"mine@{DIGEST}", spec="two-cores"))
        organization = Organization.objects.get(slug="stranger")
        assert (organization.plan.name, job.priority, job.org_slug) == ("free", 100, "stranger")
        assert Membership.objects.get(organization=organization).user.username == "stranger"

    def test_slugs_that_are_taken_get_a_suffix(self, stranger, spec, project):
        Organization.objects.create(slug="stranger", plan=plan_of_tier("team"))
        accepted(stranger, job_body(f"mine@{DIGEST}", spec="two-cores"))
        assert Project.objects.get(slug="mine").organization.slug.startswith("stranger-")


class TestPermission:
    def test_anonymous_on_a_claimed_project_is_401(self, anyone, spec, project):
        refused(lambda: post_run(anyone, job_body(spec="two-cores")), 401)
        project.visibility = "public"
        project.save()
        refused(lambda: post_run(anyone, job_body(spec="two-cores")), 401)

    def test_a_stranger_is_404_on_a_private_project_and_403_on_a_public_one(self, stranger, spec, project):
        refused(lambda: post_run(stranger, job_body(spec="two-cores")), 404)
        project.visibility = "public"
        project.save()
        refused(lambda: post_run(stranger, job_body(spec="two-cores")), 403)

    def test_a_private_project_of_others_is_answered_byte_by_byte_as_one_that_does_not_exist(
        self, anyone, stranger, spec, project
    ):
        """Its UUID may be known, from an image or a link. Its slug must not follow from it."""
        missing, key = str(uuid4()), Caller(project_key(new_project("other")))
        found, same = {}, {"X-Request-Id": "req_01m8gbbsf2xm25vwx2z760kgb8"}
        for name, caller in {"anonymous": anyone, "user": stranger, "key": key}.items():
            for place, body in {
                "project": lambda named: job_body(spec="two-cores") | {"project": named},
                "results": lambda named: direct_body(BMF) | {"project": named},
                "digest": lambda named: job_body(f"{named}@{DIGEST}", spec="two-cores"),
                "tag": lambda named: job_body(f"{named}:v1", spec="two-cores"),
            }.items():
                answers = [post_run(caller, body(named), **same) for named in (str(project.uuid), missing)]
                shown = [
                    (answer.status_code, answer.content.decode().replace(named, "UUID"), answer.get("WWW-Authenticate"))
                    for answer, named in zip(answers, (str(project.uuid), missing), strict=True)
                ]
                if shown[0] != shown[1] or project.public_slug in shown[0][1] or shown[0][0] == 201:
                    found[name, place] = shown
        assert found == {}
        slugs = [
            post_run(key, job_body(f"{slug}@{DIGEST}", spec="two-cores"), **same) for slug in ("adapter", "nowhere")
        ]
        assert slugs[0].content == slugs[1].content
        assert slugs[0].status_code == 401

    def test_a_project_key_needs_no_name_of_the_project(self, spec, project):
        caller = Caller(project_key(project))
        body = document_body()
        del body["project"]
        assert job_of(caller, body).trigger_actor == "project key test"

    def test_a_project_key_of_another_project_is_401(self, spec, project):
        caller = Caller(project_key(new_project("other")))
        refused(lambda: post_run(caller, job_body(spec="two-cores")), 401)
        refused(lambda: post_run(caller, job_body(f"other@{DIGEST}", spec="two-cores") | {"project": "adapter"}), 401)

    def test_a_project_key_with_the_image_of_no_project_is_400(self, spec, project):
        program = Caller(project_key(project))
        refused(lambda: post_run(program, job_body("nowhere:v1", spec="two-cores")), 400, "nowhere")

    @pytest.mark.parametrize("token", ["bencher_run_" + "x" * 30, "bencher_user_" + "x" * 30, "x.y.z", "x"])
    def test_an_invalid_credential_is_401(self, anyone, spec, token):
        anyone.headers = {"Authorization": f"Bearer {token}"}
        refused(lambda: post_run(anyone, job_body(spec="two-cores")), 401)

    def test_staff_submits_everywhere_and_owns_nothing_by_it(self, spec, project):
        olga = new_person("olga", is_staff=True)
        olga.user_permissions.add(Permission.objects.get(codename="operate_job"))
        accepted(olga.caller, job_body(spec="two-cores"))
        unclaimed = new_project("free-for-all", "unclaimed", visibility="public")
        accepted(olga.caller, job_body(f"free-for-all@{DIGEST}", spec="two-cores"))
        assert not Membership.objects.filter(user=olga).exists()
        assert Organization.objects.get(pk=unclaimed.organization_id).plan.name == "unclaimed"

    def test_staff_without_the_permission_submits_nothing(self, spec, project):
        """The organization would pay for it. Staff may read the project, so the refusal is not 404."""
        bare = new_person("bare", is_staff=True).caller
        assert bare.get("/v0/projects/adapter/jobs").status_code == 200
        refused(lambda: post_run(bare, job_body(spec="two-cores")), 403, "no member")
        refused(lambda: post_run(bare, direct_body(BMF)), 403, "no member")


class TestRegistry:
    @pytest.mark.parametrize(
        "image", [f"ghcr.io/adapter@{DIGEST}", "quay.io/adapter:v1", f"localhost:1/adapter@{DIGEST}"]
    )
    def test_a_foreign_registry_is_400(self, mia, spec, image):
        refused(lambda: post_run(mia, job_body(image, spec="two-cores") | {"project": "adapter"}), 400, "registry")

    def test_a_digest_is_used_as_it_is(self, mia, spec):
        digest = f"sha512:{'0123456789abcdef' * 8}"
        assert config_of(job_of(mia, job_body(f"adapter:v1@{digest}", spec="two-cores")))["digest"] == digest

    def test_a_tag_that_does_not_exist_is_400(self, mia, spec):
        refused(lambda: post_run(mia, job_body("adapter:v1", spec="two-cores")), 400, "image", "v1")

    @pytest.mark.parametrize("tag", ["", ":latest", ":v1"])
    def test_a_tag_becomes_its_digest_at_submit(self, mia, spec, project, settings, tmp_path, tag):
        settings.STORAGES = storages_in(settings, tmp_path)
        docker = Docker(token(project))
        name = tag.removeprefix(":") or "latest"
        digest = docker.push_image("adapter", name)
        image = f"localhost:61016/adapter{tag}"
        job = job_of(mia, job_body(image, spec="two-cores"))
        assert (config_of(job)["digest"], config_of(job)["image"]) == (digest, image)
        docker.push_image("adapter", name)
        job.refresh_from_db()
        assert config_of(job)["digest"] == digest, "a tag that moves later changes no job"

    def test_a_tag_of_another_project_is_400(self, mia, spec, project, settings, tmp_path):
        settings.STORAGES = storages_in(settings, tmp_path)
        other = new_project("foreign")
        Docker(token(other)).push_image("foreign", "v1")
        body = job_body("localhost:61016/foreign:v1", spec="two-cores") | {"project": "adapter"}
        refused(lambda: post_run(mia, body), 400, "repository")
        refused(lambda: post_run(mia, job_body("localhost:61016/adapter:v1", spec="two-cores")), 400, "v1")


class TestSpec:
    def test_an_explicit_spec_wins(self, mia, spec):
        new_spec("Fallback", fallback_at=timezone.now())
        assert job_of(mia, job_body(spec=str(spec.uuid))).requirements == [f"spec:{spec.uuid}"]

    @pytest.mark.parametrize("name", ["nowhere", str(UUID(int=99)), "archived"])
    def test_an_unknown_or_archived_spec_is_404(self, mia, spec, name):
        new_spec("archived", archived_at=timezone.now(), fallback_at=None)
        refused(lambda: post_run(mia, job_body(spec=name)), 404, name)

    def test_the_spec_of_the_named_testbed_comes_next(self, mia, spec):
        fallback = new_spec("Fallback", fallback_at=timezone.now())
        accepted(mia, job_body(spec="two-cores") | {"testbed": "Machine"})
        assert job_of(mia, job_body() | {"testbed": "Machine"}).requirements == [f"spec:{spec.uuid}"]
        assert job_of(mia, job_body() | {"testbed": "Other"}).requirements == [f"spec:{fallback.uuid}"]

    def test_the_reset_ignores_the_spec_of_the_testbed(self, mia, spec):
        fallback = new_spec("Fallback", fallback_at=timezone.now())
        accepted(mia, job_body(spec="two-cores") | {"testbed": "Machine"})
        job = job_of(mia, job_body() | {"testbed": "Machine", "spec_reset": True})
        assert job.requirements == [f"spec:{fallback.uuid}"]

    def test_an_archived_spec_of_the_testbed_does_not_count(self, mia, spec):
        accepted(mia, job_body(spec="two-cores") | {"testbed": "Machine"})
        spec.archived_at = timezone.now()
        spec.save()
        refused(lambda: post_run(mia, job_body() | {"testbed": "Machine"}), 400, "spec")

    def test_the_fallback_comes_last_and_without_one_it_is_400(self, mia, spec):
        refused(lambda: post_run(mia, job_body()), 400, "spec")
        spec.fallback_at = timezone.now()
        spec.save()
        assert job_of(mia, job_body()).requirements == [f"spec:{spec.uuid}"]

    def test_the_sandbox_decides_the_isolation(self, mia):
        new_spec("In a VM", sandbox="firecracker")
        new_spec("On the host")
        assert job_of(mia, job_body(spec="in-a-vm")).least_isolation == "microvm"
        assert job_of(mia, job_body(spec="on-the-host")).least_isolation == "none"


class TestTestbed:
    def test_without_a_name_it_is_named_after_the_spec(self, mia, spec):
        accepted(mia, job_body(spec="two-cores"))
        assert (Testbed.objects.get().name, Testbed.objects.get().spec) == ("Two cores", spec)

    def test_a_named_one_keeps_its_name_and_gets_the_spec(self, mia, spec):
        accepted(mia, job_body(spec="two-cores") | {"testbed": "My machine"})
        assert (Testbed.objects.get().name, Testbed.objects.get().spec) == ("My machine", spec)

    def test_an_archived_one_is_restored(self, mia, spec):
        accepted(mia, job_body(spec="two-cores"))
        Testbed.objects.update(archived_at=timezone.now())
        accepted(mia, job_body(spec="two-cores"))
        assert Testbed.objects.get().archived_at is None

    def test_a_uuid_of_no_testbed_is_404(self, mia, spec):
        refused(lambda: post_run(mia, job_body(spec="two-cores") | {"testbed": str(uuid4())}), 404)


class TestReport:
    def test_the_report_has_its_job_spec_and_settings(self, mia, spec, project):
        body = job_body(spec="two-cores") | {"hash": "0" * 40, "settings": {"adapter": "json", "fold": "min"}}
        report = accepted(mia, body)
        row = Report.objects.get()
        assert (str(row.uuid), row.job.report, row.spec, row.project) == (report["uuid"], row, spec, project)
        assert (row.adapter, row.fold, row.average, row.git_hash) == ("json", "min", "", "0" * 40)
        assert (row.branch.name, row.created_by) == ("main", "mia")

    def test_the_times_are_placeholders_until_the_job_has_ended(self, mia, spec):
        accepted(mia, job_body(spec="two-cores"))
        row = Report.objects.get()
        assert row.start_time == row.end_time == row.created_at
        assert timezone.now() - row.created_at < timedelta(minutes=5)

    def test_the_branch_comes_from_the_context_and_is_main_by_default(self, mia, spec):
        body = job_body(spec="two-cores")
        del body["branch"]
        accepted(mia, body)
        context = {"bencher.dev/v0/branch/ref/name": "feature", "bencher.dev/v0/branch/hash": "1" * 40}
        accepted(mia, body | {"context": context})
        assert list(Report.objects.order_by("id").values_list("branch__name", "git_hash")) == [
            ("main", ""), ("feature", "1" * 40),
        ]  # fmt: skip

    def test_the_job_starts_pending_although_there_is_no_runner(self, mia, spec):
        assert job_of(mia, job_body(spec="two-cores")).state == "queued"


class TestIdempotency:
    def test_the_same_key_returns_the_same_report_and_no_second_job(self, mia, spec):
        body = job_body(spec="two-cores") | {"idempotency_key": str(uuid4())}
        first = accepted(mia, body)
        assert accepted(mia, body) == first
        assert (Report.objects.count(), Job.objects.count()) == (1, 1)

    def test_another_key_or_none_makes_another_report(self, mia, spec):
        for key in (str(uuid4()), str(uuid4()), None, None):
            accepted(mia, job_body(spec="two-cores") | {"idempotency_key": key})
        assert (Report.objects.count(), Job.objects.count()) == (4, 4)

    def test_a_key_counts_within_its_project(self, mia, spec, project):
        key = str(uuid4())
        Project.objects.create(organization=project.organization, slug="second")
        first = accepted(mia, job_body(spec="two-cores") | {"idempotency_key": key})
        second = accepted(mia, job_body(f"second@{DIGEST}", spec="two-cores") | {"idempotency_key": key})
        assert first["uuid"] != second["uuid"]

    def test_a_refused_run_leaves_its_key_free(self, mia, spec):
        key = str(uuid4())
        refused(lambda: post_run(mia, job_body("adapter:v1", spec="two-cores") | {"idempotency_key": key}), 400)
        accepted(mia, job_body(spec="two-cores") | {"idempotency_key": key})


class TestTiers:
    @pytest.mark.parametrize(
        ("tier", "priority", "timeouts"),
        [
            ("enterprise", 300, {None: 3600, 60: 60, 2**31 - 1: 2**31 - 1}),
            ("team", 200, {None: 3600, 7200: 7200}),
            ("free", 100, {None: 300, 299: 299, 301: 300, 2**31 - 1: 300}),
        ],
    )
    def test_priority_and_timeout_by_plan(self, mia, spec, project, tier, priority, timeouts):
        project.organization.plan = plan_of_tier(tier)
        project.organization.save()
        for requested, granted in timeouts.items():
            job = job_of(mia, job_body(spec="two-cores", timeout=requested))
            assert (job.priority, job.timeout_seconds, config_of(job)["timeout"]) == (priority, granted, granted)

    def test_an_unclaimed_organization_has_priority_0_and_a_minute(self, anyone, spec):
        for requested, granted in {None: 60, 30: 30, 61: 60}.items():
            job = job_of(anyone, job_body(f"free-for-all@{DIGEST}", spec="two-cores", timeout=requested))
            assert (job.priority, job.timeout_seconds, job.limited_by_address) == (0, granted, True)

    def test_the_operator_s_plan_counts(self, mia, spec, project):
        Plan.objects.filter(pk=project.organization.plan_id).update(max_timeout_seconds=50, default_timeout_seconds=20)
        assert config_of(job_of(mia, job_body(spec="two-cores")))["timeout"] == 20
        assert config_of(job_of(mia, job_body(spec="two-cores", timeout=51)))["timeout"] == 50

    def test_a_full_queue_is_429_and_leaves_nothing(self, mia, spec, project):
        Plan.objects.filter(pk=project.organization.plan_id).update(max_queued=1)
        accepted(mia, job_body(spec="two-cores"))
        refused(lambda: post_run(mia, job_body(spec="two-cores") | {"testbed": "New", "branch": "new"}), 429)


class TestSourceAddress:
    def test_a_header_counts_only_behind_the_operators_proxy(self, mia, spec, settings):
        headers = {"X-Forwarded-For": "192.0.2.1", "Fly-Client-IP": "192.0.2.2"}
        assert job_of(mia, job_body(spec="two-cores"), **headers).source_address == "127.0.0.1"
        settings.BEHIND_PROXY = True
        assert job_of(mia, job_body(spec="two-cores"), **headers).source_address == "192.0.2.1"
        settings.CLIENT_ADDRESS_HEADER = "Fly-Client-IP"
        assert job_of(mia, job_body(spec="two-cores"), **headers).source_address == "192.0.2.2"


class TestNothingHalfMade:
    """`refused` compares every row: no project, branch, testbed, report or job remains of a refused run."""

    def test_a_refusal_of_the_image_leaves_no_project(self, mia, spec):
        body = job_body("brand-new:v1", spec="two-cores") | {"branch": "new", "testbed": "New"}
        refused(lambda: post_run(mia, body), 400)

    def test_a_failure_at_the_end_leaves_nothing(self, mia, spec, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("planted")

        monkeypatch.setattr("orchestrator.protocols.bencher.runs.operation.enqueue_job", fail)
        refused(lambda: post_run(mia, job_body(f"brand-new@{DIGEST}", spec="two-cores")), 500)


class TestDocument002:
    """The members `image` and `spec`, with the table of the document."""

    def test_image_and_spec_make_a_job(self, mia, spec, project):
        job = job_of(mia, document_body())
        assert (config_of(job)["digest"], "image" in config_of(job)) == (DIGEST, False)
        assert job.requirements == [f"spec:{spec.uuid}"]

    def test_times_and_results_are_optional_with_an_image(self, mia, spec):
        accepted(mia, document_body(results=[], **TIMES))
        accepted(mia, document_body())

    def test_the_image_may_be_a_reference(self, mia, spec):
        body = document_body(image=f"localhost:61016/adapter@{DIGEST}")
        del body["project"]
        assert job_of(mia, body).project_slug == "adapter"

    @pytest.mark.parametrize(
        ("members", "named"),
        [
            ({"spec": None}, "spec"),
            ({"image": None}, "image"),
            ({"results": [BMF]}, "results"),
            ({"image": ""}, "image"),
            ({"image": "sha256:abc"}, "image"),
            ({"job": {"image": f"adapter@{DIGEST}"}}, "job"),
        ],
    )
    def test_every_other_combination_is_400(self, mia, spec, members, named):
        refused(lambda: post_run(mia, document_body(**members) | TIMES), 400, named)
