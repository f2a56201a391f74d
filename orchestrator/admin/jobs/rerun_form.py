"""The form of the buttons that rerun a workflow run: a reason, and what the new run changes."""

from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from orchestrator.admin.forms import ReasonForm
from runtime_jobs.models import WorkflowEvent, WorkflowRun
from runtime_jobs.workflows.reruns import RunEdit


class AssignmentsField(forms.Field):
    """Edits texts by name as lines `NAME=text`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, widget=UnfoldAdminTextareaWidget(attrs={"rows": 3}), **kwargs)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(f"{name}={text}" for name, text in value.items()) if isinstance(value, dict) else value

    def to_python(self, value: Any) -> dict[str, str]:
        """Return the texts by name.

        Raises:
            ValidationError: A line has no `=`, or a name occurs twice.
        """
        texts: dict[str, str] = {}
        for number, line in enumerate((value or "").splitlines(), 1):
            name, separator, text = line.partition("=")
            if not line.strip():
                continue
            if not separator or not name.strip():
                raise forms.ValidationError(f"Line {number}: write NAME=value.")
            if name.strip() in texts:
                raise forms.ValidationError(f"Line {number}: {name.strip()} occurs twice.")
            texts[name.strip()] = text
        return texts


class RerunForm(ReasonForm):
    """Asks for the reason of a rerun and for its changes. Empty fields change nothing."""

    runs_on = forms.CharField(
        required=False,
        label="Runs on",
        widget=UnfoldAdminTextInputWidget,
        help_text="Label for all jobs, in place of the one in the file.",
    )
    timeout_minutes = forms.IntegerField(
        required=False,
        label="Timeout in minutes",
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Timeout for all jobs, in place of the one in the file.",
    )
    env = AssignmentsField(label="Environment", help_text="Variables for all jobs, one NAME=value per line.")
    inputs = AssignmentsField(label="Inputs", help_text="Inputs of the manual start, one name=value per line.")

    def __init__(self, data: Any, run: WorkflowRun) -> None:
        """Display the inputs of a manually started run. Other runs have none."""
        self._old_inputs = dict(run.event_payload.get("inputs", {})) if run.event == WorkflowEvent.DISPATCH else None
        super().__init__(data, initial={"inputs": self._old_inputs})
        self.fields["reason"].help_text = "Shown with the new run."
        if self._old_inputs is None:
            del self.fields["inputs"]

    def clean(self) -> dict[str, Any]:
        """Let the rules of an edit refuse what they refuse in a request."""
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            for name, errors in self.edit.validate().items():
                self.add_error(name, errors)
        return cleaned

    @property
    def edit(self) -> RunEdit:
        """The changes of a valid form."""
        found = self.cleaned_data
        inputs = found.get("inputs")
        return RunEdit(
            inputs=None if inputs == self._old_inputs else inputs,
            env=found["env"],
            runs_on=found["runs_on"] or None,
            timeout_minutes=found["timeout_minutes"],
        )

    def refuse(self, errors: dict[str, list[str]]) -> None:
        """Display the errors of an operation beside the fields, those of other members above all fields."""
        for path, messages in errors.items():
            name = path.partition(".")[0]
            if name in self.fields:
                self.add_error(name, [f"{path}: {message}" for message in messages])
            else:
                self.add_error(None, [f"{path}: {message}" for message in messages])
