"""Displays the demo: the timeline while the job runs, then the findings. Without a terminal it prints plain lines."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from orchestrator.devtools.demo.client import DemoRequest

MAX_WIDTH = 100  # columns; longer lines are hard to read
STATE_COLOURS = {"failed": "red", "canceled": "yellow", "succeeded": "green"}
SEVERITIES = {"critical": "bold white on red", "high": "bold red", "medium": "yellow", "low": "cyan"}
VERDICTS = {"allowed": "yellow", "refused": "green", "unreachable": "green"}
MAX_TREE_PROCESSES = 25  # the run's page shows all


class Terminal:
    """Writes to standard output. Removes control characters from the job's texts, which could steer the terminal."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, emoji=False, markup=False)
        if not self.console.is_terminal or self.console.width > MAX_WIDTH:
            self.console = Console(highlight=False, emoji=False, markup=False, width=MAX_WIDTH)
        self.queued_at: datetime | None = None
        self.actor = ""

    def title(self, request: DemoRequest, sandbox: str) -> None:
        """Print the heading: repository, command and sandbox."""
        network = "no network" if request.egress is None else f"network: {', '.join(request.egress)}"
        self._heading("Runtime Orchestrator")
        self._grid(
            [
                ("repository", f"{request.repo_url} @ {request.git_commit[:12]}"),
                ("command", shlex.join(request.command)),
                ("sandbox", f"{sandbox}, {network}"),
            ]
        )
        self.console.print()

    def warning(self, *lines: str) -> None:
        """Print lines that must be noticed."""
        for line in lines:
            self._print(Text(f" {line} ".ljust(self.console.width), "bold black on yellow"))
        self.console.print()

    @contextmanager
    def waiting(self, activity: str) -> Iterator[None]:
        """Display an animation beside the activity's name, on a terminal only."""
        with self.console.status(Text(activity, "dim"), spinner="dots"):
            yield

    def event(self, event: Mapping[str, Any]) -> None:
        """Print one event of the job's history: seconds since the first one, state, actor and reason."""
        created_at = datetime.fromisoformat(event["created_at"])
        self.queued_at = self.queued_at or created_at
        state = event["to_state"] or event["event_type"]
        colour = STATE_COLOURS.get(state, "blue")
        line = Text.assemble((f"{(created_at - self.queued_at).total_seconds():7.2f} s ", "dim"), ("● ", colour))
        line.append(f"{state.replace('_', ' '):<13} ", "bold")
        actor = f"{event['actor']['kind']} {event['actor']['id']}"
        details = _reason(event) if actor == self.actor else f"{actor}  {_reason(event)}"
        self.actor = actor
        line.append(plain(details).plain, "dim")
        line.rstrip()
        self.console.print(line, overflow="ellipsis", no_wrap=True)

    def output(self, lines: Iterable[str]) -> None:
        """Print lines of output, of the job or of a process."""
        for line in lines:
            self.console.print(Text.assemble(" " * 10, ("│ ", "dim"), plain(line)), overflow="fold")

    def findings(self, run: Mapping[str, Any]) -> None:
        """Print what the rules found suspicious, worst first."""
        items = run["suspicious_activity"]["items"]
        self._heading("Suspicious activity")
        if not items:
            self._print(Text("  Nothing suspicious.", "green"))
            return
        table = _table()
        table.add_column("severity", no_wrap=True)
        table.add_column("rule", no_wrap=True)
        table.add_column("finding", ratio=1, overflow="fold")
        table.add_column("times", justify="right")
        for item in items:
            style = SEVERITIES.get(item["severity"], "")
            finding = Text.assemble(plain(item["reason"]), "\n", (plain(item["detail"]).plain, "bold"))
            table.add_row(Text(item["severity"], style), plain(item["rule"]), finding, str(item["count"]))
        self._print(table)

    def network(self, run: Mapping[str, Any]) -> None:
        """Print the names and addresses that the command tried to reach."""
        items = run["network_attempts"]["items"]
        if not items:
            return
        self._heading("Network attempts")
        table = _table()
        table.add_column("kind", no_wrap=True)
        table.add_column("name or address", ratio=1, overflow="fold")
        table.add_column("verdict", no_wrap=True)
        table.add_column("times", justify="right")
        for item in items:
            verdict = Text(item["verdict"] or "-", VERDICTS.get(item["verdict"], ""))
            table.add_row(item["kind"], plain(item["name"] or item["addr"]), verdict, str(item["count"]))
        self._print(table)

    def processes(self, run: Mapping[str, Any]) -> None:
        """Print the tree of processes in the order of their start, with the rules that each one broke."""
        children: dict[int | None, list[Mapping[str, Any]]] = defaultdict(list)
        listed = run["processes"]["items"][:MAX_TREE_PROCESSES]
        known = {item["pid"] for item in listed}
        for item in listed:
            children[item["parent_pid"] if item["parent_pid"] in known else None].append(item)
        tree = Tree("", guide_style="dim", hide_root=True)
        _add_branches(tree, children, None)
        left_out = run["processes"]["total"] - len(listed)
        if left_out > 0:
            tree.add(Text(f"and {left_out} more", "dim"))
        self._heading("Processes")
        self._print(Padding(tree, (0, 0, 0, 2)))

    def summary(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print the last part of the report."""
        self._heading("Result")
        self._grid(rows)

    def next_steps(self, command: str, rows: Iterable[tuple[str, str]]) -> None:
        """Print the command that comes next, and below it what it offers. Each value can be copied as it is."""
        self._heading("Open it in a browser")
        self.console.print(Text(f"  {command}", "bold"), soft_wrap=True)
        self.console.print()
        for name, value in rows:
            self.console.print(Text.assemble((f"  {name:<12}", "dim"), plain(value)), soft_wrap=True)
        self.console.print()

    def _heading(self, text: str) -> None:
        self.console.print()
        self.console.rule(Text(text, "bold"), align="left", style="dim")

    def _grid(self, rows: Iterable[tuple[str, str]]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in rows:
            table.add_row("", Text(name, "dim"), plain(value))
        self._print(table)

    def _print(self, renderable: RenderableType) -> None:
        """Print without the padding that rich adds at the end of each line, which a file would keep."""
        if self.console.is_terminal:
            self.console.print(renderable)
            return
        with self.console.capture() as captured:
            self.console.print(renderable)
        for line in captured.get().splitlines():
            self.console.print(Text(line.rstrip()), soft_wrap=True)


def plain(text: str) -> Text:
    """Return the text without control characters: a job's output must not steer the terminal."""
    return Text("".join(sign if sign.isprintable() or sign == "\t" else "·" for sign in text).expandtabs(4))


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, expand=True, show_edge=False, pad_edge=True)


def _reason(event: Mapping[str, Any]) -> str:
    """Return the reason, message and run that an event has, if any."""
    payload = event["payload"]
    return "  ".join(str(payload[name]) for name in ("reason", "message", "ingest_run_id") if payload.get(name))


def _add_branches(branch: Tree, children: Mapping[int | None, list[Mapping[str, Any]]], parent: int | None) -> None:
    for item in children.get(parent, ()):
        line = plain(item.get("command") or " ".join(item["exec_paths"]) or f"process {item['pid']}")
        line.truncate(48, overflow="ellipsis")
        if item.get("rules"):
            line.append(f"  {plain(', '.join(item['rules'])).plain}", "red")
        _add_branches(branch.add(line), children, item["pid"])
