"""The rules of suspicious activity: a table with a severity and a reason for each.

A rule examines one event and its process, and returns the detail of the finding, or None. It must not match what
package managers, compilers and libc do every day: a report with false alarms is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workers.report.events import (
    AttemptEvent,
    ContactEvent,
    DeathEvent,
    ExecEvent,
    FileEvent,
    ListenEvent,
    LookupEvent,
    ProxyEvent,
    TraceCutEvent,
    TraceEvent,
)
from workers.report.rules import files, network, processes
from workers.report.rules.context import RuleContext

SEVERITIES = ("critical", "high", "medium", "low")


@dataclass(frozen=True, slots=True)
class FindingRule:
    """A rule. `test` returns the detail of the finding, or None."""

    name: str
    severity: str
    reason: str
    test: Callable[[RuleContext[Any]], str | None]


_METADATA = "Tries the place where clouds hand out credentials"
_OUTSIDE = "Tries an address outside the expected registries"

RULES: Mapping[type[TraceEvent], tuple[FindingRule, ...]] = {
    FileEvent: (
        FindingRule("credential_read", "high", "Reads a file that holds credentials or keys", files.credential_read),
        FindingRule("write_outside", "high", "Tries to change files outside its own directories", files.write_outside),
        FindingRule("kernel_write", "critical", "Tries to change the kernel or another process", files.kernel_write),
        FindingRule(
            "persistence_write", "high", "Writes where shells, hooks or schedulers look", files.persistence_write
        ),
        FindingRule("setuid_bit", "high", "Makes a file that runs with its owner's rights", files.setuid_bit),
    ),
    ExecEvent: (
        FindingRule(
            "exec_from_temporary", "high", "Runs a program out of a temporary directory", processes.exec_from_temporary
        ),
        FindingRule("exec_from_memory", "critical", "Runs a program that has no file", processes.exec_from_memory),
        FindingRule("exec_refused", "medium", "Tries to start a program that it may not", processes.exec_refused),
        FindingRule(
            "install_script", "low", "A package manager starts a shell for a package", processes.install_script
        ),
    ),
    AttemptEvent: (
        FindingRule(
            "sandbox_escape", "critical", "Tries to reach through the walls of its sandbox", processes.sandbox_escape
        ),
        FindingRule("kill_outside", "high", "Tries to signal processes that are not its own", processes.kill_outside),
        FindingRule(
            "unusual_socket", "high", "Asks for a socket that reaches past the network", network.unusual_socket
        ),
    ),
    DeathEvent: (
        FindingRule(
            "bad_syscall", "high", "Was killed for a call that no ordinary program makes", processes.bad_syscall
        ),
    ),
    TraceCutEvent: (
        FindingRule("trace_cut", "medium", "Did so much that the end of its trace is missing", processes.trace_cut),
    ),
    ContactEvent: (
        FindingRule("metadata_address", "critical", _METADATA, network.metadata_address),
        FindingRule("private_address", "high", "Tries an address of a private network", network.private_address),
        FindingRule("connection_outside", "medium", _OUTSIDE, network.connection_outside),
        FindingRule(
            "host_socket", "high", "Tries a socket through which the machine is controlled", network.host_socket
        ),
    ),
    ProxyEvent: (FindingRule("connection_outside", "medium", _OUTSIDE, network.proxied_outside),),
    LookupEvent: (
        FindingRule("metadata_address", "critical", _METADATA, network.metadata_name),
        FindingRule(
            "lookup_outside", "medium", "Looks up a name outside the expected registries", network.lookup_outside
        ),
        FindingRule("encoded_lookup", "high", "Looks up a name long enough to carry data out", network.encoded_lookup),
    ),
    ListenEvent: (
        FindingRule("listening_socket", "medium", "Waits for connections from others", network.listening_socket),
    ),
}


def evaluate_rules(context: RuleContext[TraceEvent]) -> Iterator[tuple[FindingRule, str]]:
    """Yield every rule that matches, with the detail."""
    for rule in RULES.get(type(context.event), ()):
        detail = rule.test(context)
        if detail is not None:
            yield rule, detail
