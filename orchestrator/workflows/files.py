"""Reads workflow files of repositories at a commit."""

import logging

from orchestrator.repositories.contents import list_files_at, read_file_at
from orchestrator.repositories.errors import FileTooLarge, RepositoryError
from runtime_jobs.errors import WorkflowRejected, WorkflowUnreadable
from runtime_jobs.models import Repository
from runtime_jobs.models.workflow_runs import MAX_FILE
from runtime_jobs.workflows.diagnostics import Diagnostic, Severity
from runtime_jobs.workflows.document import WORKFLOW_FOLDER, Workflow, is_workflow_file
from runtime_jobs.workflows.parsing import ParsedWorkflow, parse_workflow
from runtime_jobs.workflows.yaml_nodes import MAX_BYTES

log = logging.getLogger(__name__)

MAX_FILES = 100  # of one commit


def list_workflow_files(repository: Repository, commit: str) -> list[str]:
    """Return the paths of the workflow files of a commit, at most `MAX_FILES`.

    A path that no row can store is left out and logged: it has more than `MAX_FILE` characters, or is not UTF-8.

    Raises:
        RepositoryError: The mirror cannot be read, or does not have the commit.
    """
    files = []
    for path in filter(is_workflow_file, list_files_at(repository, commit, WORKFLOW_FOLDER)):
        if _can_be_stored(path):
            files.append(path)
        else:
            log.warning(
                "the workflow file %a of %s at %s is left out: its name cannot be stored", path, repository, commit
            )
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


def _can_be_stored(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # git decodes other bytes as surrogates
        return False
    return len(path) <= MAX_FILE
