"""Every module with tasks is in the catalogue: a task that is not declared would wait for ever."""

from orchestrator.housekeeping.registry import KINDS
from orchestrator.processes import housekeeping_catalogue
from tests.test_architecture import imports, modules

TASK = "orchestrator.housekeeping.registry.task"


def test_the_catalogue_lists_each_module_that_declares_tasks():
    declaring = {name for name, tree in modules().items() if TASK in imports(tree)}
    assert set(housekeeping_catalogue.TASK_MODULES) == declaring


def test_its_modules_declare_tasks_with_names_that_fit_the_column():
    housekeeping_catalogue.load()
    assert {kind.run.__module__ for kind in KINDS.values()} >= set(housekeeping_catalogue.TASK_MODULES)
    assert [name for name in KINDS if len(name) > 63] == []
