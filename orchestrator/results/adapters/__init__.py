"""The adapters by name. Each one reads the results of one benchmark harness from the text that a job printed."""

from orchestrator.results.adapters.base import Adapter, AdapterName, Average, MetricValue, Results
from orchestrator.results.adapters.bencher_metric_format import BENCHER_METRIC_FORMAT
from orchestrator.results.adapters.cpp_google import CPP_GOOGLE
from orchestrator.results.adapters.go_bench import GO_BENCH
from orchestrator.results.adapters.magic import parse_with
from orchestrator.results.adapters.python_pytest import PYTHON_PYTEST
from orchestrator.results.adapters.rust_bench import RUST_BENCH
from orchestrator.results.adapters.rust_criterion import RUST_CRITERION
from orchestrator.results.adapters.shell_hyperfine import SHELL_HYPERFINE

__all__ = ["ADAPTERS", "AdapterName", "Average", "MetricValue", "Results", "parse_results"]

_ALL = (
    *(BENCHER_METRIC_FORMAT, CPP_GOOGLE, GO_BENCH, PYTHON_PYTEST),
    *(RUST_BENCH, RUST_CRITERION, SHELL_HYPERFINE),
)
# The adapters that each name attempts, in this order.
ADAPTERS: dict[str, tuple[Adapter, ...]] = {
    AdapterName.MAGIC: _ALL,
    AdapterName.JSON: (BENCHER_METRIC_FORMAT,),
    AdapterName.RUST: (RUST_BENCH, RUST_CRITERION),
    AdapterName.RUST_BENCH: (RUST_BENCH,),
    AdapterName.RUST_CRITERION: (RUST_CRITERION,),
    AdapterName.CPP: (CPP_GOOGLE,),
    AdapterName.CPP_GOOGLE: (CPP_GOOGLE,),
    AdapterName.GO: (GO_BENCH,),
    AdapterName.GO_BENCH: (GO_BENCH,),
    AdapterName.PYTHON: (PYTHON_PYTEST,),
    AdapterName.PYTHON_PYTEST: (PYTHON_PYTEST,),
    AdapterName.SHELL: (SHELL_HYPERFINE,),
    AdapterName.SHELL_HYPERFINE: (SHELL_HYPERFINE,),
}


def parse_results(adapter: str, text: str, average: Average | None = None) -> Results | None:
    """Return the results in a text, or None if the text is not in a format of the adapter.

    Args:
        adapter: A name of `AdapterName`.
        text: What the harness printed or wrote.
        average: The requested average. None: the mean, or the only average of the adapter.
    """
    return parse_with(ADAPTERS[adapter], text, average)
