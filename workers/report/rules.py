"""The named rules of suspicious activity: a small table, each with a severity and a reason in words.

A rule looks at one fact and at the process behind it, and returns the detail that it objects to, or None. It must stay
silent on what package managers, compilers and libc do every day: a report that cries at `/etc/passwd` is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workers.report import rules_on_files as files
from workers.report import rules_on_network as network
from workers.report import rules_on_processes as processes
from workers.report.case import Case
from workers.report.facts import Attempt, Contact, Death, Execution, Fact, FileUse, Listening, Lookup, Proxied, TraceCut

SEVERITIES = ("critical", "high", "medium", "low")


@dataclass(frozen=True, slots=True)
class Rule:
    """`test` returns the detail that it objects to, or None."""

    name: str
    severity: str
    reason: str
    test: Callable[[Case[Any]], str | None]


_METADATA = "Tries the place where clouds hand out credentials"
_OUTSIDE = "Tries an address outside the expected registries"

RULES: Mapping[type[Fact], tuple[Rule, ...]] = {
    FileUse: (
        Rule("credential_read", "high", "Reads a file that holds credentials or keys", files.credential_read),
        Rule("write_outside", "high", "Tries to change files outside its own directories", files.write_outside),
        Rule("kernel_write", "critical", "Tries to change the kernel or another process", files.kernel_write),
        Rule("persistence_write", "high", "Writes where shells, hooks or schedulers look", files.persistence_write),
        Rule("setuid_bit", "high", "Makes a file that runs with its owner's rights", files.setuid_bit),
    ),
    Execution: (
        Rule(
            "exec_from_temporary", "high", "Runs a program out of a temporary directory", processes.exec_from_temporary
        ),
        Rule("exec_from_memory", "critical", "Runs a program that has no file", processes.exec_from_memory),
        Rule("exec_refused", "medium", "Tries to start a program that it may not", processes.exec_refused),
        Rule("install_script", "low", "A package manager starts a shell for a package", processes.install_script),
    ),
    Attempt: (
        Rule("sandbox_escape", "critical", "Tries to reach through the walls of its sandbox", processes.sandbox_escape),
        Rule("kill_outside", "high", "Tries to signal processes that are not its own", processes.kill_outside),
        Rule("unusual_socket", "high", "Asks for a socket that reaches past the network", network.unusual_socket),
    ),
    Death: (
        Rule("bad_syscall", "high", "Was killed for a call that no ordinary program makes", processes.bad_syscall),
    ),
    TraceCut: (Rule("trace_cut", "medium", "Did so much that the end of its trace is missing", processes.trace_cut),),
    Contact: (
        Rule("metadata_address", "critical", _METADATA, network.metadata_address),
        Rule("private_address", "high", "Tries an address of a private network", network.private_address),
        Rule("connection_outside", "medium", _OUTSIDE, network.connection_outside),
        Rule("host_socket", "high", "Tries a socket through which the machine is controlled", network.host_socket),
    ),
    Proxied: (Rule("connection_outside", "medium", _OUTSIDE, network.proxied_outside),),
    Lookup: (
        Rule("metadata_address", "critical", _METADATA, network.metadata_name),
        Rule("lookup_outside", "medium", "Looks up a name outside the expected registries", network.lookup_outside),
        Rule("encoded_lookup", "high", "Looks up a name long enough to carry data out", network.encoded_lookup),
    ),
    Listening: (Rule("listening_socket", "medium", "Waits for connections from others", network.listening_socket),),
}


def judge(case: Case[Fact]) -> Iterator[tuple[Rule, str]]:
    """Every rule that objects, with the detail."""
    for rule in RULES.get(type(case.fact), ()):
        detail = rule.test(case)
        if detail is not None:
            yield rule, detail
