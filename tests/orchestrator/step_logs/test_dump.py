"""A dump of an installation in use has no secret, in no form, and no token: while jobs print them and afterwards."""

import base64
import json
import random
import secrets
import shlex
import string
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model
from django.core.files.storage import storages
from django.test import Client

from orchestrator.housekeeping.models import HousekeepingTask
from orchestrator.step_logs import tasks
from orchestrator.step_logs.job_log_events import START, JobLogEvents
from runtime_jobs.db_time import database_now
from runtime_jobs.models import JobStep, LogChunk, MaskSnapshot, Secret, StepLog, WaitingLogChunk
from runtime_jobs.specs import ActionsStep
from tests.factories import WorkerFactory, api_token, personal_key, project_key
from tests.orchestrator.protocols.shithub.runner import ClaimedJobClient
from tests.orchestrator.protocols.shithub.world import actions_spec, make_repository, register, start_run
from tests.orchestrator.step_logs.dump import dumped, revealed
from tests.orchestrator.step_logs.logs import text_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
ENDED_STEPS = 12
HELD, WAITING = ENDED_STEPS, ENDED_STEPS + 1  # the steps that still run
STEPS = tuple(ActionsStep(index, name=f"Step {index}", run="make") for index in range(ENDED_STEPS + 2))


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    """The folder of the storage of this test."""
    options = {"OPTIONS": {"location": str(tmp_path / "objects")}}
    settings.STORAGES = settings.STORAGES | {"artifacts": settings.STORAGES["artifacts"] | options}
    assert storages["artifacts"].location == str(tmp_path / "objects")
    return tmp_path / "objects"


def new_value(length=60):
    """A value that contains what encoders and quotes change."""
    return "".join(secrets.choice(string.ascii_letters + string.digits + "/+&' \"$%\\") for _ in range(length))


def printed_forms(value):
    """Return what careless scripts print: the value in plain, encoded and quoted."""
    raw = value.encode()
    return [
        raw,
        base64.b64encode(raw),
        base64.urlsafe_b64encode(raw),
        base64.b64encode(b"x" + raw + b"yz"),
        base64.b64encode(b"xx" + raw + b"z"),
        raw.hex().encode(),
        raw.hex().upper().encode(),
        quote(value, safe="").encode(),
        json.dumps(value).encode(),
        shlex.quote(value).encode(),
    ]


def split(text, chance):
    """Two to five chunks, each as (number, bytes)."""
    cuts = sorted(chance.sample(range(1, len(text)), chance.randint(1, 4)))
    return list(enumerate(text[first:last] for first, last in zip([0, *cuts], [*cuts, len(text)], strict=True)))


def send(claim: ClaimedJobClient, step, chunks):
    for seq, data in chunks:
        assert claim.log(data, seq=seq, step=step).status_code == 202


def events_of(job):
    """The texts of all events of the job's live log, joined by step."""
    texts, position = {}, START
    while not (batch := JobLogEvents().read(job.job_ulid, position)).ended and batch.position != position:
        position = batch.position
        for line in batch.data.decode().splitlines():
            if line.startswith("data: ") and "text" in (event := json.loads(line.removeprefix("data: "))):
                texts[event["step"]] = texts.get(event["step"], "") + event["text"]
    return texts


class Installation:
    """An installation with credentials of every kind, and a runner whose job was given two secrets."""

    def __init__(self):
        self.repository = make_repository()
        project = self.repository.project
        self.organization = project.organization
        user = get_user_model().objects.create_user("mia", password="correct horse battery")
        api = api_token(self.organization)
        self.api = Client(headers={"Authorization": f"Bearer {api}"})
        self.runner = register()
        self.values = {"TOKEN": new_value(), "DEPLOY_KEY": f"-----BEGIN KEY-----\n{new_value(48)}\n-----END KEY-----"}
        self.put("TOKEN", self.values["TOKEN"], "alice/demo")
        self.put("DEPLOY_KEY", self.values["DEPLOY_KEY"], None)
        self.started = start_run(
            self.repository, [actions_spec(steps=STEPS, permissions={"mode": "", "per": {"id-token": "write"}})]
        )
        self.claim = self.runner.client.claim()
        self.tokens = {
            "api": api, "personal": personal_key(user), "project": project_key(project),
            "worker": WorkerFactory().token,
            "registration": self.runner.client.registration,
            "checkout": self.claim.job["checkout_token"],
            "identity": self.claim.job["env"]["ACTIONS_ID_TOKEN_REQUEST_TOKEN"],
        }  # fmt: skip

    def put(self, name, value, repository):
        body = {"org_slug": self.organization.slug, "repository": repository, "value": value}
        response = self.api.put(f"/v1/secrets/{name}", body, content_type="application/json")
        assert response.status_code in {200, 201}, response.content

    def secrets(self):
        """Everything that a dump must not have: the values in all printed forms, line by line, and all tokens."""
        found = {
            f"{name} in form {number}": form
            for name, value in self.values.items()
            for number, form in enumerate(form[4:-4] for form in printed_forms(value))
        }
        found |= {f"line {line!r}": line.encode() for value in self.values.values() for line in value.splitlines()}
        # Of a JSON Web Token the first two parts are public; only the signature is a credential.
        credentials = self.tokens | {f"call {place}": token for place, token in enumerate(self.claim.tokens)}
        found |= {f"token {name}": token.rpartition(".")[2][-40:].encode() for name, token in credentials.items()}
        return found | {"token registration in bytes": bytes.fromhex(self.tokens["registration"])}


def test_neither_secret_nor_token_is_in_a_dump_of_an_installation_in_use(tmp_path, folder):
    chance = random.Random(13)
    found = Installation()
    assert found.claim.run().status_code == 200
    # Rotated and deleted after the claim: what the runner was given stays masked.
    old = found.values["TOKEN"]
    found.put("TOKEN", found.values.setdefault("ROTATED", new_value()), "alice/demo")
    Secret.objects.filter(name="DEPLOY_KEY").delete()

    forms = [form for value in (old, found.values["DEPLOY_KEY"]) for form in printed_forms(value)]
    for step in range(ENDED_STEPS):
        text = b"first line\n" + b"|".join(chance.sample(forms, 3)) + b"\nlast line\n"
        chunks = split(text, chance)
        send(found.claim, step, chance.sample(chunks, len(chunks)) + chance.sample(chunks, 1))
        assert found.claim.end_step(step).status_code == 200
    send(found.claim, HELD, [(0, b"the beginning: " + old[:40].encode())])
    send(found.claim, WAITING, [(1, old.encode()), (2, b"::warning title=A::" + old.encode() + b"\n")])

    secrets_of_all = found.secrets()
    assert revealed(" ".join(found.values.values()).encode(), secrets_of_all), "the search finds them"
    while_it_runs = dumped(tmp_path / "running.sql")
    assert StepLog.objects.filter(held__isnull=False).exists()
    assert WaitingLogChunk.objects.count() == 2
    assert MaskSnapshot.objects.exists()
    assert (revealed(while_it_runs, secrets_of_all), b"first line" in while_it_runs) == ([], True)

    send(found.claim, WAITING, [(0, b"begun\n")])
    send(found.claim, HELD, [(1, old[40:].encode() + b" and the rest\n")])
    assert found.claim.end().status_code == 200
    steps = list(JobStep.objects.filter(job=found.started.job).order_by("index"))
    before = {step.index: text_of(step).decode() for step in steps}
    assert before[HELD] == "the beginning: *** and the rest\n"
    assert before[WAITING] == "begun\n***::warning title=A::***\n"
    assert all("***" in text and "first line" in text for step, text in before.items() if step < ENDED_STEPS)
    assert events_of(found.started.job) == before

    HousekeepingTask.objects.update(due_at=database_now())
    for task in HousekeepingTask.objects.filter(kind="finalize_step_log"):
        tasks.finalize(task.subject)
    assert not LogChunk.objects.exists()
    assert {step.index: text_of(step).decode() for step in steps} == before
    objects = [file.read_bytes() for file in folder.rglob("*.log")]
    assert len(objects) == len(STEPS)
    afterwards = dumped(tmp_path / "ended.sql")
    assert b"runtime_job_events" in afterwards
    assert (revealed(afterwards, found.secrets()), revealed(b"\n".join(objects), found.secrets())) == ([], [])
    assert revealed("\n".join(events_of(found.started.job).values()).encode(), found.secrets()) == []


def test_the_search_finds_what_a_row_has_in_plain(tmp_path):
    found = Installation()
    JobStep.objects.filter(index=0).update(name=f"printed: {found.values['TOKEN'][5:25]}")
    encoded = base64.b64encode(found.values["DEPLOY_KEY"].encode())
    LogChunk.objects.create(job=found.started.job, step=0, seq=0, chunk=encoded, sha256="", created_at=database_now())
    names = revealed(dumped(tmp_path / "leaking.sql"), found.secrets())
    assert "TOKEN in form 0" in names
    assert "DEPLOY_KEY in form 1" in names
    assert not any(name.startswith("token") for name in names)
