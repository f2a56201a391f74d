"""The pages of secrets and variables: set, changed and deleted by buttons, and no page displays a secret."""

import pytest

from orchestrator.core.cause import Cause
from orchestrator.core.sealing import unseal
from orchestrator.secrets.operations import set_secret
from runtime_jobs.models import OperatorEvent, Secret, Variable
from tests.factories import ALICE, OrganizationFactory, ProjectFactory
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import address
from tests.orchestrator.admin.test_job_actions import messages_of
from tests.workflow_jobs import make_repository

VALUE = "-----BEGIN KEY-----\nhunter2\n-----END KEY-----\n"
WHY = {"reason": "it leaked"}


@pytest.fixture
def repository(db):
    return make_repository(ProjectFactory(organization=OrganizationFactory(slug="acme")))


def form(repository, **changes):
    organization = repository.project.organization.pk
    return {"organization": organization, "full_name": "Alice/Demo", "name": "TOKEN", "value": VALUE} | changes


def opened(row):
    return unseal("secret", row.sealed, context=row.sealing_context).decode()


def test_a_secret_is_created_and_no_page_displays_it(olga, repository):
    answer = olga.post(address(Secret, "add"), form(repository))
    row = Secret.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, address(Secret, "change", row.pk))
    assert (row.repository_id, opened(row).replace("\r\n", "\n")) == (repository.pk, VALUE)
    pages = [
        address(Secret, "changelist"), address(Secret, "change", row.pk), address(OperatorEvent, "changelist"),
        address(OperatorEvent, "change", OperatorEvent.objects.get().pk),
    ]  # fmt: skip
    for page in pages:
        response = olga.get(page, follow=True)
        assert response.status_code == 200, page
        assert "hunter2" not in response.content.decode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "1A"},
        {"full_name": "alice/none"},
        {"full_name": "\0"},
        {"organization": "0"},
        {"value": ""},
        {"value": "hunter2" + "x" * 48 * 1024},
    ],
)
def test_a_form_with_an_error_displays_no_secret(olga, repository, wrong):
    answer = olga.post(address(Secret, "add"), form(repository, **wrong))
    assert answer.status_code == 400
    assert "hunter2" not in answer.content.decode()
    assert not Secret.objects.exists()


def test_an_existing_name_gets_the_new_value(olga, repository):
    olga.post(address(Secret, "add"), form(repository))
    answer = olga.post(address(Secret, "add"), form(repository, name="token", value="second"))
    assert messages_of(answer)[-1] == "Secret acme/alice/demo/token changed."
    assert opened(Secret.objects.get()) == "second"


def test_the_value_is_changed_by_a_button(olga, repository):
    olga.post(address(Secret, "add"), form(repository, full_name=""))
    row = Secret.objects.get()
    page = olga.get(f"{address(Secret, 'change', row.pk).removesuffix('change/')}value/")
    assert page.status_code == 200
    assert "hunter2" not in page.content.decode()
    answer = olga.post(f"{address(Secret, 'change', row.pk).removesuffix('change/')}value/", {"value": "second"})
    assert messages_of(answer) == ["Secret acme/TOKEN changed."]
    row.refresh_from_db()
    assert (opened(row), row.updated_by) == ("second", "operator:olga")


def test_a_secret_is_deleted_with_a_reason(olga, repository):
    olga.post(address(Secret, "add"), form(repository))
    row = Secret.objects.get()
    url = f"{address(Secret, 'change', row.pk).removesuffix('change/')}remove/"
    assert olga.post(url, {"reason": ""}).status_code == 400
    assert messages_of(olga.post(url, WHY)) == ["Secret acme/alice/demo/TOKEN deleted."]
    assert not Secret.objects.exists()
    event = OperatorEvent.objects.latest("pk")
    assert (event.action, event.reason) == ("secret.deleted", "it leaked")


def test_without_the_permission_there_are_no_buttons_and_no_changes(repository):
    organization = repository.project.organization
    set_secret(organization=organization, repository=None, name="A", value=VALUE, cause=Cause(ALICE))
    row = Secret.objects.get()
    viewer = client_of(person("vera", "runtime_jobs.view_secret", "runtime_jobs.view_variable"))
    page = viewer.get(address(Secret, "change", row.pk))
    assert page.status_code == 200
    assert "/value/" not in page.content.decode()
    base = address(Secret, "change", row.pk).removesuffix("change/")
    for url, values in (
        (address(Secret, "add"), form(repository)),
        (f"{base}value/", {"value": "x"}),
        (f"{base}remove/", WHY),
    ):
        assert viewer.post(url, values).status_code == 403
    row.refresh_from_db()
    assert opened(row) == VALUE


def test_a_variable_is_displayed_and_contains_no_expression(olga, repository):
    assert olga.post(address(Variable, "add"), form(repository, value="${{ x }}")).status_code == 400
    olga.post(address(Variable, "add"), form(repository, value="eu-central-1"))
    row = Variable.objects.get()
    assert "eu-central-1" in olga.get(address(Variable, "change", row.pk)).content.decode()
