"""The admin in Chromium: it works under its content security policy, in light and dark mode, and as the pictures show.

With SCREENSHOTS=docs/images in the environment the pictures go there."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from leases.models import Breaker, Limit, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.evidence import exports
from orchestrator.evidence.signing_keys import create_signing_key, retire_signing_key
from orchestrator.ingest.models import Run
from orchestrator.ingest.runs import digest_of
from orchestrator.services import actions_runners, job_end, worker_state
from orchestrator.step_logs import job_log_writes
from orchestrator.webhooks.models import Delivery
from runtime_jobs.events import Actor
from runtime_jobs.models import Job, Organization
from tests.factories import OPERATOR, HardwareSpecFactory, RunnerFactory, limited
from tests.orchestrator.admin.chromium import Tab
from tests.orchestrator.admin.fixtures import Scene, busy
from tests.orchestrator.admin.recurring_scene import recurring_morning
from tests.orchestrator.admin.replay_scene import replays_of_an_audit
from tests.orchestrator.admin.runner_scene import runner_afternoon
from tests.orchestrator.admin.webhook_scene import webhooks_afternoon
from tests.orchestrator.ingest.conftest import payload_for
from tests.orchestrator.protocols.shithub.world import actions_spec, register, start_run
from workers.models import HardwareSpec, Pool, Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import digest_of as token_digest

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# Colours as the browser computes them are compared by their light, from 0 to 1.
LIGHT = """(element => {
    const canvas = document.createElement('canvas').getContext('2d');
    canvas.fillStyle = getComputedStyle(element).%s;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255;
})(document.querySelector('%s'))"""


@pytest.fixture
def scene(transactional_db) -> Scene:
    """The busy afternoon, its newest good job with a run as our worker would have traced it."""
    found = busy()
    job, claim = found.jobs["good-5"], found.claims["good-5"]
    payload = payload_for(job, claim.lease.worker)
    # Not by `store`: the afternoon is in the past, and its leases are over.
    Run.objects.create(
        run_id=job.ingest_run_id or f"run_{job.job_ulid[4:]}",
        job_id=job.job_ulid,
        fence=claim.lease.fence,
        org_slug=job.org_slug,
        project_slug=job.project_slug,
        worker_id=claim.lease.worker_id,
        payload=payload,
        payload_sha256=digest_of(payload),
    )
    return found


@pytest.fixture
def pictures(tmp_path) -> Path:
    return Path(os.environ.get("SCREENSHOTS") or tmp_path / "pictures")


def hold_back(scene: Scene) -> None:
    """Make restrictions: a paused pool, a noisy tenant, a tenant that limits itself, an open breaker."""
    pool, cli = LimitTarget(LimitScope.POOL, "", "gpu-linux"), LimitTarget(LimitScope.PROJECT, "sandtrace", "cli")
    until = scene.at + timedelta(minutes=43)
    ci = Actor("client", "token ci")
    limited("acme-labs", max_active=2, cause=Cause(OPERATOR, "as agreed by mail"))
    limited("sandtrace", "runtime", kind=LimitKind.RATE, per_hour=120, burst=10, cause=Cause(ci, "a slow registry"))
    limited(cli, kind=LimitKind.PAUSE, max_active=0, cause=Cause(ci, "the release goes out"))
    noisy = LimitTarget.of_organization("northwind")
    limited(
        noisy, kind=LimitKind.THROTTLE, per_hour=60, burst=5, until=until, cause=Cause(OPERATOR, "a loop in their CI")
    )
    limited(pool, kind=LimitKind.PAUSE, max_active=0, until=until, cause=Cause(OPERATOR, "new disks in gpu-01"))
    Breaker.objects.create(
        org_slug="acme-labs", job_type="steps", state="open", opened_at=scene.ago(1), cool_until=until
    )


def is_visible(browser: Tab, *selectors: str) -> None:
    for selector in selectors:
        box = f"document.querySelector('{selector}')?.getBoundingClientRect()"
        assert browser.evaluate(f"({box}?.width ?? 0) * ({box}?.height ?? 0)") > 0, selector


def photograph(browser: Tab, picture: Path, url: str, *, height: int, words: tuple[str, ...]) -> None:
    """Open a page, check that it has these words and fits into the window, and take its picture."""
    browser.show(height=height)
    browser.open(url)
    displayed = browser.evaluate("document.querySelector('#main, #page').textContent")
    assert [word for word in words if word not in displayed] == [], url
    width = browser.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, f"{url} is {width} pixels too wide"
    browser.picture(picture)


def page_of(job: Job) -> str:
    return f"/admin/runtime_jobs/job/{job.job_ulid}/change/"


def run_of(job: Job) -> str:
    from orchestrator.ingest.models import Run  # noqa: PLC0415 - only here

    return f"/runs/{Run.objects.get(job_id=job.job_ulid).run_id}/"


def test_the_pages_look_as_the_readme_shows_them(browser, live_server, scene, pictures):
    for name, path, height, title, selectors in (
        ("admin-dashboard", "/admin/", 1000, "Dashboard", (".headline", ".alert.danger", ".tile", ".bar")),
        ("admin-jobs", "/admin/runtime_jobs/job/", 1000, "job", ("#result_list", "#searchbar", ".tabs")),
        ("admin-job", page_of(scene.jobs["lost"]), 1330, scene.jobs["lost"].job_ulid, (".summary.danger", ".timeline li", "pre.log")),
        ("admin-job-waiting", page_of(scene.jobs["deploy"]), 1000, scene.jobs["deploy"].job_ulid, (".summary.info", ".halves .rows")),
        ("run", run_of(scene.jobs["good-5"]), 1300, "un", ("#findings", "#processes", "#network")),
    ):  # fmt: skip
        browser.show(height=height)
        browser.open(live_server.url + path)
        assert title in browser.evaluate("document.title")
        is_visible(browser, *selectors)
        browser.picture(pictures / f"{name}.png")
        assert (pictures / f"{name}.png").stat().st_size > 30_000
    assert browser.errors == []


def test_what_holds_jobs_back_is_on_one_page(browser, live_server, scene, pictures):
    hold_back(scene)
    browser.show(height=620)
    browser.open(f"{live_server.url}/admin/leases/limit/")
    is_visible(browser, "#result_list")
    shown = browser.evaluate("document.querySelector('#result_list').textContent")
    assert all(
        words in shown for words in ("pool gpu-linux", "sandtrace/cli", "60 per hour, burst 5", "a loop in their CI")
    )
    browser.picture(pictures / "admin-limits.png")
    for path in ("/admin/", "/admin/leases/breaker/", "/admin/orchestrator/incident/", "/admin/workers/pool/"):
        browser.open(live_server.url + path)
    assert browser.errors == []


def test_quotas_webhooks_notifications_and_incidents(browser, live_server, scene, pictures):
    hold_back(scene)
    hooks = webhooks_afternoon(scene)
    acme = Organization.objects.get(slug="acme-labs")
    dead = Delivery.objects.filter(webhook=hooks["fails"]).latest("id")
    for name, path, height, words in (
        ("admin-quotas", "/admin/orchestrator/quotaoverview/", 620, ("acme-labs", "sandtrace")),
        ("admin-quota", f"/admin/orchestrator/quotaoverview/{acme.pk}/change/", 700, ("Quotas of acme-labs",)),
        ("admin-webhooks", "/admin/orchestrator/webhook/", 620, ("hooks.sandtrace.dev", "failing", "paused")),
        (
            "admin-webhook",
            f"/admin/orchestrator/webhook/{hooks['paused'].pk}/change/",
            800,
            ("have failed for 5 days",),
        ),
        ("admin-deliveries", "/admin/orchestrator/delivery/", 700, ("job.failed", "The receiver answered 503.")),
        ("admin-delivery", f"/admin/orchestrator/delivery/{dead.pk}/change/", 900, ("upstream is down",)),
        ("admin-notifications", "/admin/orchestrator/notificationrule/", 620, ("Not gathered: incident mode",)),
        ("admin-incidents", "/admin/orchestrator/incident/", 620, (hooks["paused"].webhook_ulid,)),
    ):
        photograph(browser, pictures / f"{name}.png", live_server.url + path, height=height, words=words)
    assert browser.errors == []


def test_replays_with_their_verdicts(browser, live_server, transactional_db, pictures):
    replays = replays_of_an_audit()
    for name, path, height, words in (
        ("admin-replays", "/admin/orchestrator/replay/", 560, ("match", "diverged", "unverifiable", "pending")),
        (
            "admin-replay",
            f"/admin/orchestrator/replay/{replays['diverged'].pk}/change/",
            760,
            ("dist~1report.json", "operator olga", "/logs/digest"),
        ),
        ("admin-job-replay", f"/admin/runtime_jobs/job/{replays['match'].replay_of_ulid}/replay/", 560, ("Sealed",)),
    ):
        photograph(browser, pictures / f"{name}.png", live_server.url + path, height=height, words=words)
    assert browser.errors == []


def test_schedules_and_bulk_actions(browser, live_server, scene, pictures):
    schedule, action = recurring_morning()
    for name, path, height, words in (
        ("admin-schedules", "/admin/orchestrator/schedule/", 520, ("nightly scan", "Europe/Berlin", "paused")),
        (
            "admin-schedule",
            f"/admin/orchestrator/schedule/{schedule.pk}/change/",
            1000,
            ("Next times", "submitted", "refused", "overlapped"),
        ),
        (
            "admin-bulk-actions",
            "/admin/orchestrator/bulkaction/",
            520,
            ("aborted", "running", "the branch was reverted"),
        ),
        ("admin-bulk-action", f"/admin/orchestrator/bulkaction/{action.pk}/change/", 900, ("not_found", "alice")),
    ):
        photograph(browser, pictures / f"{name}.png", live_server.url + path, height=height, words=words)
    assert browser.errors == []


def test_evidence_and_signing_keys(browser, live_server, scene, pictures, settings, tmp_path):
    settings.SIGNING_KEY_DIR = str(tmp_path / "keys")
    keys = [create_signing_key(actor=OPERATOR, now=scene.ago(60 - number)) for number in range(2)]
    retire_signing_key(keys[0].key_id, cause=Cause(OPERATOR, "rotation", now=scene.ago(10)))
    for number, (name, key) in enumerate((("good-5", keys[0]), ("lost", keys[1]))):
        job = scene.jobs[name]
        exports.record_audit_bundle(
            org_slug=job.org_slug,
            job_ulid=job.job_ulid,
            since=scene.at - timedelta(days=30 * (number + 1)),
            until=scene.at,
            size_bytes=3_578_651 * (number + 1),
            sha256=f"{number + 7:x}4c0b2d9" * 8,
            key_id=key.key_id,
            lines={"jobs.jsonl": 3000, "history.jsonl": 30_000, "throttles.jsonl": 12, "replays.jsonl": 2},
            now=scene.ago(30 - 20 * number),
        )
    for name, path, words in (
        ("admin-evidence", "/admin/orchestrator/auditbundle/", ("30,000", "3.4", scene.jobs["lost"].job_ulid)),
        ("admin-signing-keys", "/admin/orchestrator/signingkey/", (keys[0].key_id, "retired", "active")),
    ):
        photograph(browser, pictures / f"{name}.png", live_server.url + path, height=520, words=words)
    assert browser.errors == []


def test_a_pool_is_paused_and_resumed_by_its_buttons(browser, live_server, scene):
    pool = Pool.objects.get(slug="shared-linux")
    browser.open(f"{live_server.url}/admin/workers/pool/{pool.pk}/change/")
    press(browser, 'a[href$="/pause/"]')
    browser.evaluate("document.querySelector('#id_until').value = '2099-01-01T00:00'")
    browser.evaluate("document.querySelector('#id_reason').value = 'new disks'")
    press(browser, 'form.card button[type="submit"]')
    browser.until("document.body.textContent.includes('paused by operator olga until 2099-01-01 00:00 UTC')")
    press(browser, 'a[href$="/resume/"]')
    browser.evaluate("document.querySelector('#id_reason').value = 'they are in'")
    press(browser, 'form.card button[type="submit"]')
    browser.until("document.body.textContent.includes('not paused or throttled')")
    assert not Limit.objects.exists()
    assert browser.errors == []


def test_light_and_dark_mode_have_contrast(browser, live_server, scene, tmp_path):
    for dark in (False, True):
        browser.show(dark=dark, height=1300)
        for number, path in enumerate(
            ("/admin/", "/admin/runtime_jobs/job/", page_of(scene.jobs["running"]), "/admin/login/")
        ):
            browser.open(live_server.url + path)
            paper = browser.evaluate(LIGHT % ("backgroundColor", "#main, #page.bg-white"))
            ink = browser.evaluate(LIGHT % ("color", "h1, h2, .headline h2, label"))
            assert (paper < 0.2) == dark, path
            assert abs(paper - ink) > 0.5, path
            if dark:
                browser.picture(tmp_path / f"dark-{number}.png")
    assert browser.errors == []


def test_no_page_violates_the_content_security_policy(browser, live_server, scene):
    worker = scene.workers["build-01"].pk
    for path in (
        f"/admin/workers/worker/{worker}/change/",
        "/admin/workers/worker/add/",
        "/admin/runtime_jobs/apitoken/add/",
        "/admin/runtime_jobs/project/",
        "/admin/auth/user/",
        f"{page_of(scene.jobs['running'])}?",
        "/admin/leases/lease/?due=open",
        "/admin/runtime_jobs/operatorevent/",
    ):
        browser.open(live_server.url + path)
        browser.until("window.Alpine !== undefined")
    assert browser.errors == []


def test_a_log_is_followed_while_it_is_printed(browser, live_server, scene):
    job, claim = scene.jobs["running"], scene.claims["running"]
    lease, worker = claim.lease.lease_ulid, scene.workers["build-01"]
    browser.open(live_server.url + page_of(job))
    assert "core-js" in browser.evaluate("document.querySelector('pre.log').textContent")
    job_log_writes.append_log(lease_ulid=lease, worker=worker, seq=1, chunk=b"<b>a later line</b>\n")
    browser.until("document.querySelector('pre.log').textContent.endsWith('<b>a later line</b>\\n')")
    assert browser.evaluate("document.querySelector('pre.log b')") is None
    job_end.complete(lease_ulid=lease, worker=worker, ingest_run_id="run_followed", exit_code=0)
    browser.until("document.querySelector('pre.log').dataset.ended === 'yes'")
    browser.until("document.querySelector('#summary h2').textContent === 'Succeeded'")
    browser.until("document.querySelector('#details .timeline b').textContent === 'Completed'")
    assert browser.evaluate("document.querySelector('#summary').hasAttribute('hx-get')") is False
    assert browser.errors == []


def press(browser: Tab, selector: str) -> None:
    """Click what leads to another page, and wait for that page."""
    browser.evaluate("window.before = true")
    browser.evaluate(f"document.querySelector('{selector}').click()")
    browser.until("window.before === undefined && document.readyState === 'complete'")


def test_a_new_token_is_copied_by_its_button(browser, live_server, scene):
    browser.open(f"{live_server.url}/admin/workers/worker/add/")
    browser.evaluate("document.querySelector('#id_slug').value = 'build-09'")
    browser.evaluate("document.querySelector('#id_pool').selectedIndex = 1")
    press(browser, 'form.card button[type="submit"]')
    token = browser.evaluate("document.querySelector('#token').textContent")
    browser.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.evaluate("document.querySelector('[data-copy]').click()")
    browser.until("document.querySelector('[data-label]').textContent === 'Copied'")
    assert browser.evaluate("window.copied") == token
    assert browser.errors == []


def test_a_runner_is_created_with_a_key_and_gets_a_spec(browser, live_server, transactional_db, pictures):
    for slug, name in (("x86-64-8-cores", "8 cores, x86-64"), ("arm-64-4-cores", "4 cores, ARM")):
        is_arm = slug.startswith("arm")
        HardwareSpecFactory(
            slug=slug,
            name=name,
            architecture="aarch64" if is_arm else "x86_64",
            sandbox=None if is_arm else "firecracker",
            cpu=4 if is_arm else 8,
            memory=(16 if is_arm else 64) << 30,
            disk=200 << 30,
            fallback_at=None if is_arm else timezone.now(),
        )
    RunnerFactory(slug="rack-6", specs=HardwareSpec.objects.all(), last_seen_at=timezone.now())
    browser.open(f"{live_server.url}/admin/workers/runner/add/")
    browser.evaluate("document.querySelector('#id_name').value = 'Rack 7'")
    press(browser, 'form.card button[type="submit"]')
    key = browser.evaluate("document.querySelector('#token').textContent")
    browser.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.evaluate("document.querySelector('[data-copy]').click()")
    browser.until("document.querySelector('[data-label]').textContent === 'Copied'")
    assert browser.evaluate("window.copied") == key
    runner = Worker.objects.get(slug="rack-7")
    assert runner.digest == token_digest(key)
    browser.open(f"{live_server.url}/admin/workers/runner/{runner.pk}/change/")
    press(browser, 'a[href$="/add-spec/"]')
    browser.evaluate("document.querySelector('#id_spec').selectedIndex = 1")
    browser.evaluate("document.querySelector('#id_reason').value = 'new machine'")
    press(browser, 'form.card button[type="submit"]')
    browser.until("document.body.textContent.includes('rack-7: provides arm-64-4-cores.')")
    for name, path in (
        ("admin-runner-new", f"/admin/workers/runner/{runner.pk}/change/"),
        ("admin-spec-new", "/admin/workers/hardwarespec/add/"),
        ("admin-key-new", "/admin/runtime_jobs/personalkey/add/"),
    ):
        browser.show(height=700)
        browser.open(live_server.url + path)
        browser.picture(pictures / f"{name}.png")
    assert browser.errors == []


def test_a_job_is_canceled_by_its_button(browser, live_server, scene):
    job = scene.jobs["waiting-0"]
    browser.open(live_server.url + page_of(job))
    press(browser, 'a[href$="/cancel/"]')
    browser.evaluate("document.querySelector('#id_reason').value = 'wrong branch'")
    press(browser, 'form.card button[type="submit"]')
    browser.until("document.body.textContent.includes('canceled.')")
    job.refresh_from_db()
    assert (job.state, job.cancel_message) == ("canceled", "wrong branch")
    assert browser.errors == []


def test_jobs_are_chosen_in_the_list_and_canceled_together(browser, live_server, scene):
    browser.open(f"{live_server.url}/admin/runtime_jobs/job/?state=queued&pool=gpu-linux")
    browser.evaluate("document.querySelectorAll('input.action-select').forEach(box => box.click())")
    browser.evaluate("document.querySelector('select[name=action]').value = 'cancel_selected'")
    browser.evaluate("document.querySelector('select[name=action]').dispatchEvent(new Event('change'))")
    browser.until(
        "document.querySelector('#changelist-actions-wrapper button[type=submit], button[name=index]') !== null"
    )
    press(browser, "#changelist-actions-wrapper button[type=submit], button[name=index]")
    assert browser.evaluate("document.querySelector('.narrow h2').textContent") == "Cancel 3 jobs"
    browser.evaluate("document.querySelector('#id_reason').value = 'no machine for it'")
    press(browser, 'form.card button[type="submit"]')
    states = {Job.objects.get(pk=scene.jobs[f"stranded-{number}"].pk).state for number in range(3)}
    assert states == {"canceled"}
    assert browser.errors == []


def test_the_pages_of_runners_and_their_jobs(browser, live_server, pictures, tmp_path, settings):
    location = {
        "BACKEND": "orchestrator.core.durable_files.DurableFileStorage",
        "OPTIONS": {"location": tmp_path / "out"},
    }
    settings.STORAGES = settings.STORAGES | {"outputs": location}
    found = runner_afternoon()
    for name, path, height, words in (
        ("runners", "/admin/workers/runner/", 560, ("rack-7", "0.6.12", "1 executing, 1 polling", "intel-v1-vm")),
        ("runner", f"/admin/workers/runner/{found.runners['rack-7'].pk}/change/", 900, ("Online", "0.6.12", "Running 1 job")),
        ("specs", "/admin/workers/hardwarespec/", 560, ("intel-v1", "8 CPUs, 32 GiB memory", "firecracker", "rack-8")),
        ("spec", f"/admin/workers/hardwarespec/{found.specs['intel-v1-vm'].pk}/change/", 800, ("firecracker",)),
        ("job-lost", page_of(found.jobs["lost"]), 1250, ("A late result of the worker still counts", "intel-v1")),
        ("job-processed", page_of(found.jobs["processed"]), 1250, ("Succeeded", "Billed minutes", "cargo bench", "Show report")),
        ("job-without-runner", page_of(found.jobs["waiting"]), 1000, ("the hardware spec graviton",)),
        ("usage", "/admin/runtime_jobs/usagerecord/", 560, ("bencher", "adapter", "Download CSV")),
        ("reports", "/admin/orchestrator/report/", 560, ("read", "adapter", "Intel v1")),
        ("report", f"/admin/orchestrator/report/{found.reports['processed'].pk}/change/", 900, ("read", "main", "json")),
        ("dashboard-runners", "/admin/", 900, ("Runner silent with a job: rack-8",)),
    ):  # fmt: skip
        browser.show(height=height)
        browser.open(live_server.url + path)
        shown = " ".join(browser.evaluate("document.body.textContent").split())
        assert [word for word in words if word not in shown] == [], name
        overflow = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow == 0, f"{name}: the page is {overflow} pixels too wide"
        browser.picture(pictures / f"admin-{name}.png")
    assert browser.errors == []


def test_the_pages_of_runners_of_workflow_jobs(browser, live_server, pictures, settings):
    settings.PUBLIC_URL = "https://ci.example"
    busy_runner, drained = register("build-1", labels=["ubuntu-latest", "gpu"], capacity=4), register("build-2")
    start_run(specs=[actions_spec(), actions_spec(job_key="lint", job_name="lint")])
    for _ in range(2):
        busy_runner.client.claim(capacity=4, labels=["ubuntu-latest", "gpu"], host_name="rack-4", version="1.4.0").run()
    actions_runners.rotate_registration_token(
        name="build-1", overlap=timedelta(hours=1), cause=Cause(OPERATOR, "yearly")
    )
    worker_state.set_worker_state(
        worker_id=drained.worker_id, state=WorkerState.DRAINING, cause=Cause(OPERATOR, "kernel")
    )
    register("build-3")
    page = f"/admin/workers/actionsrunner/{busy_runner.row.pk}/change/"
    for name, path, height, words in (
        ("actions-runners", "/admin/workers/actionsrunner/", 560, ("build-1", "ubuntu-latest", "2 of 4", "1.4.0")),
        ("actions-runner", page, 1000, ("Running 2 of 4 slots", "rack-4", "namespaces", "lint", "Expires")),
        ("actions-runner-new", "/admin/workers/actionsrunner/add/", 900, ("shows its token once", "expires after")),
        ("actions-runner-rotate", page.replace("change", "rotate-token"), 700, ("Overlap minutes", "Reason")),
    ):  # fmt: skip
        browser.show(height=height)
        browser.open(live_server.url + path)
        shown = " ".join(browser.evaluate("document.body.textContent").split())
        browser.picture(pictures / f"admin-{name}.png")
        assert [word for word in words if word not in shown] == [], name
        overflow = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow == 0, f"{name}: the page is {overflow} pixels too wide"
    assert browser.errors == []
