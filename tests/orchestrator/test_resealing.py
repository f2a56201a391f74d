"""`manage.py reseal`: afterwards every sealed value has the new root key, and the former one is not needed."""

import base64
import io

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import models

from orchestrator.core.cause import Cause
from orchestrator.core.sealing import SealedValueError, is_current, unseal
from orchestrator.core.unit_of_work import UnitOfWork
from orchestrator.identity import keys
from orchestrator.maintenance.resealing import SEALED_COLUMNS, reseal, unreadable_rows
from orchestrator.repositories.mirrors import seal_credential
from orchestrator.secrets.operations import set_secret, snapshot_secrets
from orchestrator.webhooks.operations import rotate_webhook_key
from runtime_jobs.models import MaskSnapshot, Repository, Secret
from tests.factories import ALICE
from tests.orchestrator.webhooks.world import make_webhook
from tests.workflow_jobs import claimed_workflow_job, make_repository

pytestmark = pytest.mark.django_db
FIRST, SECOND = (base64.b64encode(letter * 32).decode() for letter in (b"1", b"2"))


@pytest.fixture
def installation(settings):
    """Sealed values of each kind, under the first root key."""
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = FIRST, []
    repository = make_repository()
    Repository.objects.update(sealed_credential=seal_credential(repository.full_name, "user:password"))
    organization = repository.project.organization
    for name in ("A", "B"):
        set_secret(organization=organization, repository=repository, name=name, value=name, cause=Cause(ALICE))
    claimed = claimed_workflow_job(repository)
    snapshot_secrets(UnitOfWork(), claimed.job, claimed.run)
    keys.ensure_identity_key()
    webhook = make_webhook(organization)
    rotate_webhook_key(webhook_ulid=webhook.webhook_ulid, cause=Cause(ALICE))
    return repository


def resealed():
    out = io.StringIO()
    call_command("reseal", stdout=out, stderr=out)
    return out.getvalue().splitlines()


def test_everything_opens_with_the_new_key_alone(installation, settings):
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = SECOND, [FIRST]
    lines = resealed()
    assert "runtime_secrets.sealed: 2 sealed again" in lines
    assert "runtime_mask_snapshots.sealed: 1 sealed again" in lines
    assert "repositories.sealed_credential: 1 sealed again" in lines
    assert "identity_keys.sealed: 1 sealed again" in lines
    assert "webhooks.sealed_secret: 1 sealed again" in lines
    assert "webhooks.sealed_former_secret: 1 sealed again" in lines
    settings.ACTIONS_ROOT_KEYS_OLD = []
    for column in SEALED_COLUMNS:
        assert list(unreadable_rows(column)) == []
        for row in column.model.objects.exclude(**{column.column: None}):
            assert is_current(getattr(row, column.column))
    row = Secret.objects.get(name="A")
    assert unseal("secret", row.sealed, context=row.sealing_context) == b"A"


def test_a_repetition_changes_nothing(installation, settings):
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = SECOND, [FIRST]
    resealed()
    before = list(Secret.objects.order_by("pk").values_list("sealed", flat=True))
    assert all(line.endswith(": 0 sealed again") for line in resealed())
    assert list(Secret.objects.order_by("pk").values_list("sealed", flat=True)) == before


def test_a_value_that_cannot_be_opened_is_named_and_the_others_are_sealed(installation, settings):
    damaged = Secret.objects.get(name="A")
    sealed = bytes(damaged.sealed)
    Secret.objects.filter(pk=damaged.pk).update(sealed=sealed[:-1] + bytes([sealed[-1] ^ 1]))
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = SECOND, [FIRST]
    with pytest.raises(CommandError, match="1 values cannot be opened"):
        call_command("reseal", stdout=io.StringIO(), stderr=(errors := io.StringIO()))
    assert f"runtime_secrets.sealed: 1 cannot be opened (rows {damaged.pk})" in errors.getvalue()
    assert is_current(Secret.objects.get(name="B").sealed)
    assert list(unreadable_rows(SEALED_COLUMNS[0])) == [damaged.pk]


def test_a_row_that_changes_meanwhile_keeps_its_change(installation, settings, monkeypatch):
    """Else the command would restore a value that was replaced between its read and its write."""
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = SECOND, [FIRST]
    column = SEALED_COLUMNS[0]
    assert column.model is Secret
    organization = installation.project.organization

    def change(purpose, sealed, *, context):
        opened = unseal(purpose, sealed, context=context)
        if opened == b"A":
            set_secret(
                organization=organization, repository=installation, name="A", value="changed", cause=Cause(ALICE)
            )
        return opened

    monkeypatch.setattr("orchestrator.maintenance.resealing.unseal", change)
    assert reseal(column).changed == 1
    row = Secret.objects.get(name="A")
    assert unseal("secret", row.sealed, context=row.sealing_context) == b"changed"


def test_without_the_former_key_nothing_is_lost(installation, settings):
    settings.ACTIONS_ROOT_KEY, settings.ACTIONS_ROOT_KEYS_OLD = SECOND, []
    before = bytes(MaskSnapshot.objects.get().sealed)
    with pytest.raises(CommandError):
        call_command("reseal", stdout=io.StringIO(), stderr=io.StringIO())
    assert bytes(MaskSnapshot.objects.get().sealed) == before
    row = Secret.objects.get(name="A")
    with pytest.raises(SealedValueError):
        unseal("secret", row.sealed, context=row.sealing_context)


def test_each_column_with_sealed_values_is_known():
    """A binary column that is not in the list would be unreadable after the former key was removed."""
    known = {(column.model, column.column) for column in SEALED_COLUMNS}
    plain = {
        *("LogChunk.chunk", "StepLog.open_line"),  # masked
        *("ThrottleWindow.key", "RegistrationToken.digest"),  # hashes
        *("ImageManifest.content", "ImageManifest.annotations", "ImageManifest.config"),
    }
    binary = {
        (model, field.name)
        for model in apps.get_models()
        for field in model._meta.get_fields()
        if isinstance(field, models.BinaryField) and f"{model.__name__}.{field.name}" not in plain
    }
    assert {f"{model.__name__}.{name}" for model, name in binary - known} == set()
