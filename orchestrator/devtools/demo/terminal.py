"""What the demo shows: the timeline as it happens, then the findings. Plain lines when nobody looks on a terminal."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from orchestrator.devtools.demo.client import DemoRequest

WIDTH = 100
MARKS = {"failed": "red", "canceled": "yellow", "succeeded": "green"}
SEVERITIES = {"critical": "bold white on red", "high": "bold red", "medium": "yellow", "low": "cyan"}
VERDICTS = {"allowed": "yellow", "refused": "green", "unreachable": "green"}
LARGEST_TREE = 25  # processes; the run has them all


class Terminal:
    """Writes to stdout. Text of the job is never trusted: control characters do not reach the terminal."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, emoji=False, markup=False)
        if not self.console.is_terminal or self.console.width > WIDTH:
            self.console = Console(highlight=False, emoji=False, markup=False, width=WIDTH)
        self.queued_at: datetime | None = None
        self.actor = ""

    def title(self, order: DemoRequest, sandbox: str) -> None:
        self.console.rule(Text("Runtime Orchestrator", "bold"), align="left", style="dim")
        table = Table.grid(padding=(0, 2))
        table.add_row("", Text("repository", "dim"), plain(f"{order.repo_url} @ {order.git_commit[:12]}"))
        table.add_row("", Text("command", "dim"), plain(shlex.join(order.command)))
        reach = "no network" if order.egress is None else f"network: {', '.join(order.egress)}"
        table.add_row("", Text("sandbox", "dim"), plain(f"{sandbox}, {reach}"))
        self.console.print(table)
        self.console.print()

    def warning(self, *lines: str) -> None:
        for line in lines:
            self.console.print(Text(f" {line} ".ljust(self.console.width), "bold black on yellow"))
        self.console.print()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show that something is going on, on a terminal only."""
        with self.console.status(Text(what, "dim"), spinner="dots"):
            yield

    def event(self, event: Mapping[str, Any]) -> None:
        at = datetime.fromisoformat(event["created_at"])
        self.queued_at = self.queued_at or at
        state = event["to_state"] or event["event_type"]
        colour = MARKS.get(state, "blue")
        line = Text.assemble((f"{(at - self.queued_at).total_seconds():7.2f} s ", "dim"), ("● ", colour))
        line.append(f"{state.replace('_', ' '):<13} ", "bold")
        actor = f"{event['actor']['kind']} {event['actor']['id']}"
        told = _why(event) if actor == self.actor else f"{actor}  {_why(event)}"
        self.actor = actor
        line.append(plain(told).plain, "dim")
        self.console.print(line, overflow="ellipsis", no_wrap=True)

    def output(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.console.print(Text.assemble(" " * 10, ("│ ", "dim"), plain(line)), overflow="fold")

    def findings(self, run: Mapping[str, Any]) -> None:
        items = run["suspicious_activity"]["items"]
        table = Table(box=box.SIMPLE_HEAD, expand=True, title="Suspicious activity", title_justify="left")
        table.add_column("severity", no_wrap=True)
        table.add_column("rule", no_wrap=True)
        table.add_column("what", ratio=1, overflow="fold")
        table.add_column("times", justify="right")
        for item in items:
            style = SEVERITIES.get(item["severity"], "")
            what = Text.assemble(plain(item["reason"]), "\n", (plain(item["detail"]).plain, "bold"))
            table.add_row(Text(item["severity"], style), plain(item["rule"]), what, str(item["count"]))
        self.console.print()
        self.console.print(table if items else Text("  Nothing suspicious.", "green"))

    def network(self, run: Mapping[str, Any]) -> None:
        items = run["network_attempts"]["items"]
        if not items:
            return
        table = Table(box=box.SIMPLE_HEAD, expand=True, title="Network attempts", title_justify="left")
        for name in ("kind", "name or address", "verdict", "times"):
            table.add_column(name, ratio=1 if name == "name or address" else None, overflow="fold")
        for item in items:
            verdict = Text(item["verdict"] or "-", VERDICTS.get(item["verdict"], ""))
            table.add_row(item["kind"], plain(item["name"] or item["addr"]), verdict, str(item["count"]))
        self.console.print(table)

    def processes(self, run: Mapping[str, Any]) -> None:
        """The tree of what was started, in the order of the first sight; those that broke a rule say which."""
        children: dict[int | None, list[Mapping[str, Any]]] = defaultdict(list)
        shown = run["processes"]["items"][:LARGEST_TREE]
        known = {item["pid"] for item in shown}
        for item in shown:
            children[item["parent_pid"] if item["parent_pid"] in known else None].append(item)
        tree = Tree(Text("Processes", "italic"), guide_style="dim")
        _grow(tree, children, None)
        left_out = run["processes"]["total"] - len(shown)
        if left_out > 0:
            tree.add(Text(f"and {left_out} more", "dim"))
        self.console.print(tree)

    def summary(self, rows: Iterable[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        for name, value in rows:
            table.add_row("", Text(name, "dim"), plain(value))
        self.console.print()
        self.console.print(table)
        self.console.print()


def plain(text: str) -> Text:
    """Return the text without control characters: what a job prints must not steer the terminal."""
    return Text("".join(sign if sign.isprintable() or sign == "\t" else "·" for sign in text).expandtabs(4))


def _why(event: Mapping[str, Any]) -> str:
    """The few words beside a state: the reason, if there is one."""
    payload = event["payload"]
    return "  ".join(str(payload[name]) for name in ("reason", "message", "ingest_run_id") if payload.get(name))


def _grow(branch: Tree, children: Mapping[int | None, list[Mapping[str, Any]]], parent: int | None) -> None:
    for item in children.get(parent, ()):
        line = plain(item.get("command") or " ".join(item["exec_paths"]) or f"process {item['pid']}")
        line.truncate(60, overflow="ellipsis")
        if item.get("rules"):
            line.append(f"  {plain(', '.join(item['rules'])).plain}", "red")
        _grow(branch.add(line), children, item["pid"])
