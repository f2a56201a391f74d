"""The console in a real browser: it works under its own policy, in both lights, and looks as the pictures show.

With SCREENSHOTS=docs/images in the environment the pictures go there."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client

from orchestrator import lifecycle
from orchestrator.ingest.runs import store
from runtime_jobs.models import Job
from tests.admin.chromium import Chromium
from tests.admin.conftest import NAME, client_of, person
from tests.admin.scene import Scene, busy
from tests.orchestrator.ingest.conftest import payload_for

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
    store(payload_for(job, claim.lease.worker), worker=claim.lease.worker)
    return found


@pytest.fixture
def browser(live_server, tmp_path) -> Iterator[Chromium]:
    user = person(NAME, is_superuser=True)
    client: Client = client_of(user)
    with Chromium(tmp_path / "chromium") as found:
        found.show()
        found.cookie("sessionid", client.cookies["sessionid"].value, live_server.url)
        yield found


@pytest.fixture
def pictures(tmp_path) -> Path:
    return Path(os.environ.get("SCREENSHOTS") or tmp_path / "pictures")


def is_visible(browser: Chromium, *selectors: str) -> None:
    for selector in selectors:
        box = f"document.querySelector('{selector}')?.getBoundingClientRect()"
        assert browser.evaluate(f"({box}?.width ?? 0) * ({box}?.height ?? 0)") > 0, selector


def page_of(job: Job) -> str:
    return f"/admin/runtime_jobs/job/{job.job_ulid}/change/"


def run_of(job: Job) -> str:
    from orchestrator.models import Run  # noqa: PLC0415 - only here

    return f"/runs/{Run.objects.get(job_id=job.job_ulid).run_id}/"


def test_the_pages_look_as_the_readme_shows_them(browser, live_server, scene, pictures):
    for name, path, height, title, selectors in (
        ("admin-first-page", "/admin/", 1000, "Is anything wrong?", (".headline", ".alarm.danger", ".tile", ".bar")),
        ("admin-jobs", "/admin/runtime_jobs/job/", 1000, "job", ("#result_list", "#searchbar", ".tabs")),
        ("admin-job", page_of(scene.jobs["lost"]), 1330, scene.jobs["lost"].job_ulid, (".verdict.danger", ".timeline li", "pre.log")),
        ("admin-job-waiting", page_of(scene.jobs["deploy"]), 1000, scene.jobs["deploy"].job_ulid, (".verdict.info", ".halves .rows")),
        ("run", run_of(scene.jobs["good-5"]), 1300, "un", ("#findings", "#processes", "#network")),
    ):  # fmt: skip
        browser.show(height=height)
        browser.open(live_server.url + path)
        assert title in browser.evaluate("document.title")
        is_visible(browser, *selectors)
        browser.picture(pictures / f"{name}.png")
        assert (pictures / f"{name}.png").stat().st_size > 30_000
    assert browser.errors == []


def test_both_lights_are_sane(browser, live_server, scene, tmp_path):
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


def test_no_page_of_the_console_breaks_its_own_policy(browser, live_server, scene):
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
    lifecycle.append_log(lease_ulid=lease, worker=worker, seq=1, chunk=b"<b>a later line</b>\n")
    browser.until("document.querySelector('pre.log').textContent.endsWith('<b>a later line</b>\\n')")
    assert browser.evaluate("document.querySelector('pre.log b')") is None
    lifecycle.complete(lease_ulid=lease, worker=worker, ingest_run_id="run_followed", exit_code=0)
    browser.until("document.querySelector('pre.log').dataset.ended === 'yes'")
    browser.until("document.querySelector('#verdict h2').textContent === 'Uploaded'")
    browser.until("document.querySelector('#story .timeline b').textContent === 'Completed'")
    assert browser.evaluate("document.querySelector('#verdict').hasAttribute('hx-get')") is False
    assert browser.errors == []


def press(browser: Chromium, selector: str) -> None:
    """Click what leads to another page, and wait for that page."""
    browser.evaluate("window.before = true")
    browser.evaluate(f"document.querySelector('{selector}').click()")
    browser.until("window.before === undefined && document.readyState === 'complete'")


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
