"""Reads workflow files of repositories at a commit."""

from orchestrator.repositories.contents import list_files_at, read_file_at
from orchestrator.repositories.errors import FileTooLarge, RepositoryError
from runtime_jobs.errors import WorkflowRejected, WorkflowUnreadable
from runtime_jobs.models import Repository
from runtime_jobs.workflows.diagnostics import Diagnostic, Severity
from runtime_jobs.workflows.document import WORKFLOW_FOLDER, Workflow, is_workflow_file
from runtime_jobs.workflows.parsing import ParsedWorkflow, parse_workflow
from runtime_jobs.workflows.yaml_nodes import MAX_BYTES

MAX_FILES = 100  # of one commit


def list_workflow_files(repository: Repository, commit: str) -> list[str]:
    """Return the paths of the workflow files of a commit, at most `MAX_FILES`.

    Raises:
        RepositoryError: The mirror cannot be read, or does not have the commit.
    """
    files = [path for path in list_files_at(repository, commit, WORKFLOW_FOLDER) if is_workflow_file(path)]
    return files[:MAX_FILES]


def parse_file_at(repository: Repository, commit: str, path: str) -> ParsedWorkflow:
    """Read a workflow file of a commit. A file that is too large has a diagnostic.

    Raises:
        RepositoryError: The mirror cannot be read, or does not have the commit or the file.
    """
    try:
        return parse_workflow(read_file_at(repository, commit, path, limit=MAX_BYTES))
    except FileTooLarge as error:
        return ParsedWorkflow(None, (Diagnostic("", 1, str(error)),))


def require_workflow(repository: Repository, commit: str, path: str) -> Workflow:
    """Return the workflow of a file at a commit.

    Raises:
        WorkflowUnreadable: There is no such file, or the mirror cannot be read.
        WorkflowRejected: The file is wrong.
    """
    try:
        parsed = parse_file_at(repository, commit, path)
    except RepositoryError as error:
        raise WorkflowUnreadable(f"The workflow file {path} cannot be read at {commit}: {error}") from error
    if parsed.workflow is None:
        raise WorkflowRejected([found for found in parsed.diagnostics if found.severity == Severity.ERROR])
    return parsed.workflow
