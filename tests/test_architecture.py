"""The shape of the house, held by reading its syntax trees: who may import whom, and who writes a state."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from leases.states import OPEN as OPEN_LEASES
from leases.states import STALE_REASONS, LeaseState
from runtime_jobs.states import (
    FAILURE_CLASSES,
    FINAL_STATES,
    LEASED_STATES,
    RUNNING_STATES,
    SETTLING_STATES,
    STATUS,
    TRANSITIONS,
    WAITING_STATES,
    FailureReason,
    JobState,
)

ROOT = Path(__file__).resolve().parent.parent

# Each may import those before it, never those after it.
LEVELS = (
    *("runtime_jobs", "workers.registry", "workers.models", "leases"),
    *("orchestrator.core", "orchestrator.pubsub", "orchestrator.incidents", "orchestrator.housekeeping"),
    *("orchestrator.services", "orchestrator.selectors", "orchestrator.limits", "orchestrator.events"),
    *(
        "orchestrator.identity",
        "orchestrator.repositories",
        "orchestrator.secrets",
        "orchestrator.artifacts",
        "orchestrator.step_logs",
    ),
    *("orchestrator.job_tokens", "orchestrator.workflows", "orchestrator.results", "orchestrator.images"),
    *("orchestrator.ingest", "orchestrator.evidence", "orchestrator.bulk_actions", "orchestrator.schedules"),
    *("orchestrator.webhooks", "orchestrator.maintenance", "orchestrator.http", "orchestrator.protocols"),
    *("orchestrator.templatetags", "orchestrator.admin", "orchestrator.audit", "orchestrator.cli"),
    *("orchestrator.devtools", "orchestrator.processes", "orchestrator.management"),
    *("orchestrator.models", "orchestrator.checks", "orchestrator.apps", "config"),
)
AGENT = ("workers.agent", "workers.report", "workers.engines")
# The command that starts the agent is the one place where the server's settings meet it.
AGENT_IS_STARTED_BY = "orchestrator.management.commands.runworker"


@cache
def modules() -> dict[str, ast.Module]:
    """Parse every module, in the test process that asks for them."""
    found = {}
    for package in ("runtime_jobs", "workers", "leases", "orchestrator", "config"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                found[name] = ast.parse(path.read_text())
    return found


def imports(tree: ast.Module, *, with_packages: bool = True) -> Iterator[str]:
    """Yield the imported names, and the modules that they are imported from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if with_packages:
                yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def level(name: str) -> int | None:
    parts = name.split(".")
    prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return next((place for place, folder in enumerate(LEVELS) if folder in prefixes), None)


def modules_imported(tree: ast.Module) -> set[str]:
    """Return the modules of the project that a module imports, or of which it imports a name."""

    def module_of(name: str) -> str:
        while name and name not in modules():
            name = name.rpartition(".")[0]
        return name

    return {module_of(name) for name in imports(tree, with_packages=False)} - {""}


def test_folders_import_only_those_below():
    def upward(name: str) -> Iterator[str]:
        place = level(name)
        for used in imports(modules()[name]):
            if place is not None and (level(used) if level(used) is not None else -1) > place:
                yield used

    wrong = [(name, used) for name in modules() for used in upward(name)]
    assert wrong == []


def test_every_module_of_the_server_has_a_level():
    missing = {name for name in modules() if level(name) is None and not name.startswith(AGENT)}
    assert missing == {"workers", "workers.apps", "workers.git_options", "orchestrator"}


def test_no_modules_import_each_other():
    """Imports inside of functions count, too: they hide a circle, and do not open it."""
    used_by = {name: modules_imported(tree) - {name} for name, tree in modules().items()}
    order = TopologicalSorter(used_by)
    order.prepare()  # raises CycleError, which names the modules


def test_the_agent_and_the_engines_import_nothing_of_the_server():
    wrong = [
        (name, used)
        for name, tree in modules().items()
        if name.startswith(AGENT)
        for used in imports(tree)
        if level(used) is not None or used.split(".")[0] == "django"
    ]
    assert wrong == []


def test_the_server_imports_nothing_of_the_agent():
    wrong = [
        (name, used)
        for name, tree in modules().items()
        for used in imports(tree)
        if used.startswith(("workers.agent", "workers.report"))
        and level(name) is not None
        and name != AGENT_IS_STARTED_BY
    ]
    assert wrong == []


# What the command line may use: of the server pure modules without Django, which need `cryptography`.
SHARED_WITH_THE_COMMAND_LINE = (
    "orchestrator.evidence.verifying",
    "orchestrator.evidence.public_keys",
    "orchestrator.evidence.replay_comparison",
)
LIBRARIES_OF_THE_COMMAND_LINE = {*sys.stdlib_module_names, "requests", "cryptography"}


def test_the_command_line_is_a_client():
    ours = ("orchestrator.cli", *SHARED_WITH_THE_COMMAND_LINE)
    wrong = [
        (name, used)
        for name, tree in modules().items()
        if name.startswith("orchestrator.cli")
        for used in imports(tree)
        if used.partition(".")[0] not in LIBRARIES_OF_THE_COMMAND_LINE and not used.startswith(ours)
    ]
    assert wrong == []


AGENT_LEVELS = {"workers.engines": 0, "workers.report": 1, "workers.agent": 2}


def test_the_report_knows_nothing_of_the_loops_and_the_engines_nothing_of_either():
    def place(module: str) -> int:
        return next((place for prefix, place in AGENT_LEVELS.items() if module.startswith(prefix)), -1)

    wrong = [
        (name, used)
        for name, tree in modules().items()
        if name.startswith(AGENT)
        for used in imports(tree)
        if place(used) > place(name)
    ]
    assert wrong == []


def test_no_protocol_imports_another():
    protocols = "orchestrator.protocols."
    wrong = [
        (name, used)
        for name, tree in modules().items()
        if name.startswith(protocols)
        for used in imports(tree)
        if used.startswith(protocols) and used.split(".")[2] != name.split(".")[2]
    ]
    assert wrong == []


def writes_of(tree: ast.Module, attribute: str) -> Iterator[int]:
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for leaf in ast.walk(target) if target is not None else ():
                if isinstance(leaf, ast.Attribute) and leaf.attr == attribute and isinstance(leaf.ctx, ast.Store):
                    yield node.lineno
        if isinstance(node, ast.Call):
            # .update(state=…), Job(state=…), .create(state=…), setattr(job, "state", …)
            named = any(keyword.arg == attribute for keyword in node.keywords)
            if named and _writes(node.func):
                yield node.lineno
            if isinstance(node.func, ast.Name) and node.func.id == "setattr":
                yield node.lineno


def _writes(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"update", "create", "update_or_create", "get_or_create", "Job", "Lease", "Worker"}


WRITERS = {
    "orchestrator.services.transitions": "jobs and leases",
    "orchestrator.services.worker_state": "workers",
    "orchestrator.services.runners": "archived workers",
    "orchestrator.incidents.breakers": "breakers",
}


def test_only_the_verbs_write_a_state():
    found = {name for name, tree in modules().items() if not name.startswith(AGENT) and any(writes_of(tree, "state"))}
    assert found == set(WRITERS)


def test_only_the_operations_of_steps_write_the_status_of_a_step():
    """Modules that read steps have no assignment to an attribute `status` of anything."""
    readers = {name for name, tree in modules().items() if "runtime_jobs.models.JobStep" in imports(tree)}
    assert len(readers) > 2
    assert {name for name in readers if any(writes_of(modules()[name], "status"))} == {"orchestrator.step_logs.steps"}


def test_only_the_claim_writes_a_state_in_sql():
    found = {
        path.name
        for path in ROOT.glob("*/**/*.sql")
        if not {".venv", "tests"}.intersection(path.parts) and re.search(r"SET (state|\{\{changes)", path.read_text())
    }
    assert found == {"claim.sql", "write.sql"}
    raw = [name for name, tree in modules().items() for text in strings(tree) if "UPDATE runtime_" in text]
    assert raw == []


UNIT_OF_WORK = "orchestrator.core.unit_of_work"


def test_only_the_unit_of_work_writes_rows_in_bulk():
    """`bulk_write` writes any column, also a state."""
    users = {name for name, tree in modules().items() if "orchestrator.core.bulk_write" in imports(tree)}
    assert users == {UNIT_OF_WORK}


def test_only_operations_use_a_unit_of_work():
    users = {name for name, tree in modules().items() if f"{UNIT_OF_WORK}.UnitOfWork" in imports(tree)}
    packages = {name.rpartition(".")[0] for name in users}
    assert packages == {
        "orchestrator.services",
        "orchestrator.artifacts",
        "orchestrator.bulk_actions",
        "orchestrator.core",
        "orchestrator.evidence",
        "orchestrator.housekeeping",
        "orchestrator.identity",
        "orchestrator.incidents",
        "orchestrator.limits",
        "orchestrator.pubsub",
        "orchestrator.repositories",
        "orchestrator.schedules",
        "orchestrator.secrets",
        "orchestrator.step_logs",
        "orchestrator.webhooks",
        "orchestrator.workflows",
        "orchestrator.protocols.github",
        "orchestrator.protocols.bencher.runs",
        "orchestrator.protocols.shithub.clients",
        "orchestrator.protocols.shithub.heartbeat",
        "orchestrator.protocols.shithub.jobs",
    }


def test_every_operation_takes_its_unit_of_work_first():
    operations = [
        function
        for tree in modules().values()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and any(_is_operation(one) for one in function.decorator_list)
    ]
    assert len(operations) > 40
    wrong = [one.name for one in operations if ast.unparse(one.args.args[0].annotation or one) != "UnitOfWork"]
    assert wrong == []


def _is_operation(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id == "operation"


def test_services_keep_no_state_outside_of_their_arguments():
    hidden = [
        (name, used)
        for name, tree in modules().items()
        if name.startswith("orchestrator.services")
        for used in imports(tree)
        if used.partition(".")[0] in {"contextvars", "threading"}
    ]
    assert hidden == []


def strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("state", JobState)
def test_every_state_is_in_every_table(state):
    assert state in TRANSITIONS
    assert state in STATUS
    sets = (WAITING_STATES, LEASED_STATES, SETTLING_STATES, FINAL_STATES)
    assert sum(state in states for states in sets) == 1
    assert (TRANSITIONS[state] == frozenset()) == (state in FINAL_STATES)


def test_phases_never_run_backwards():
    for place, state in enumerate(RUNNING_STATES):
        assert not TRANSITIONS[state] & set(RUNNING_STATES[: place + 1])


@pytest.mark.parametrize("reason", FailureReason)
def test_every_failure_has_a_class(reason):
    assert reason in FAILURE_CLASSES


@pytest.mark.parametrize("state", LeaseState)
def test_every_ended_lease_tells_its_holder_why(state):
    assert (state in STALE_REASONS) == (state not in OPEN_LEASES)


def test_no_module_is_a_drawer_for_odds_and_ends():
    drawers = {"utils", "common", "helpers", "misc"}
    assert [name for name in modules() if drawers & set(name.split("."))] == []
