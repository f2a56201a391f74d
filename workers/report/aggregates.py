"""The lists of a report while they grow: files, network attempts, findings. Each keeps some and counts all."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.report.distinct_counter import DistinctCounter
from workers.report.events import DENIED, ContactEvent, FileUse, LookupEvent
from workers.report.rules.registry import FindingRule

MAX_PATH = 1024
MAX_DETAIL = 512
_PREFIX = 256
FILES_KEPT = 1000  # of each rank; the report shows 500 in all
ADDRESSES_KEPT = 1000
DETAILS_KEPT = 100  # of each rule, so that none can crowd out the others

# How files are ranked in a report: what matters most must never be pushed out by what matters least.
SENSITIVE, DENIED_RANK, CHANGED, READ, MISSED = range(5)


@dataclass(slots=True)
class FileAggregate:
    path: str
    ops: set[str] = field(default_factory=set)
    count: int = 0
    failed: int = 0
    denied: int = 0
    sensitive: bool = False
    outside: bool = False

    @property
    def rank(self) -> int:
        if self.sensitive:
            return SENSITIVE
        if self.denied:
            return DENIED_RANK
        if self.ops - {"read"}:
            return CHANGED
        return READ if self.failed < self.count else MISSED


class FileAggregates:
    """By path. `outside`: changed, or tried, where the job may not write."""

    def __init__(self) -> None:
        self._seen = DistinctCounter()
        self._shelves: tuple[dict[str, FileAggregate], ...] = tuple({} for _ in range(5))

    @property
    def total(self) -> int:
        return self._seen.count

    def add(self, use: FileUse, *, sensitive: bool, outside: bool) -> None:
        path = use.path[: MAX_PATH + _PREFIX]  # it is shortened before it is cut
        self._seen.add(use.path)
        tally = self._taken(path) or FileAggregate(path)
        tally.ops |= use.ops
        tally.count += 1
        tally.failed += use.errno is not None
        tally.denied += use.errno in DENIED
        tally.sensitive |= sensitive
        tally.outside |= outside
        shelf = self._shelves[tally.rank]
        if len(shelf) < FILES_KEPT:
            shelf[path] = tally

    def _taken(self, path: str) -> FileAggregate | None:
        for shelf in self._shelves:
            if path in shelf:
                return shelf.pop(path)
        return None

    def kept(self) -> list[FileAggregate]:
        return [tally for shelf in self._shelves for tally in shelf.values()]


@dataclass(slots=True)
class AddressAggregate:
    """Direct contacts with one address (`host` set) or questions for one name (`name` set)."""

    family: str
    host: str = ""
    port: int | None = None
    name: str = ""
    count: int = 0
    outcome: str | None = None
    errno: str | None = None


# Several outcomes for one address: the one that got furthest counts.
OUTCOMES = ("connected", "in_progress", "failed", "denied")


class AddressAggregates:
    """By address and port, or by name."""

    def __init__(self) -> None:
        self._seen = DistinctCounter()
        self._kept: dict[str, AddressAggregate] = {}

    @property
    def total(self) -> int:
        return self._seen.count

    def contacted(self, contact: ContactEvent) -> None:
        tally = self._tally(f"{contact.family} {contact.host} {contact.port}", contact.family)
        if tally is None:
            return
        tally.host, tally.port, tally.count = contact.host, contact.port, tally.count + 1
        outcome = _outcome(contact.errno)
        if tally.outcome is None or OUTCOMES.index(outcome) < OUTCOMES.index(tally.outcome):
            tally.outcome, tally.errno = outcome, contact.errno

    def looked_up(self, lookup: LookupEvent) -> None:
        tally = self._tally(f"name {lookup.name}", "name")
        if tally is not None:
            tally.name, tally.count = lookup.name, tally.count + 1

    def _tally(self, key: str, family: str) -> AddressAggregate | None:
        self._seen.add(key)
        if key not in self._kept and len(self._kept) < ADDRESSES_KEPT:
            self._kept[key] = AddressAggregate(family)
        return self._kept.get(key)

    def kept(self) -> list[AddressAggregate]:
        return list(self._kept.values())


def _outcome(errno: str | None) -> str:
    if errno is None:
        return "connected"
    if errno == "EINPROGRESS":
        return "in_progress"
    return "denied" if errno in DENIED else "failed"


@dataclass(slots=True)
class FindingAggregate:
    rule: FindingRule
    detail: str
    count: int = 0


class FindingAggregates:
    """By rule and detail."""

    def __init__(self) -> None:
        self._seen = DistinctCounter()
        self._kept: dict[str, dict[str, FindingAggregate]] = {}

    @property
    def total(self) -> int:
        return self._seen.count

    def add(self, rule: FindingRule, detail: str, count: int = 1) -> None:
        self._seen.add(f"{rule.name} {detail}")
        detail = detail[:MAX_DETAIL]
        kept = self._kept.setdefault(rule.name, {})
        if detail not in kept and len(kept) < DETAILS_KEPT:
            kept[detail] = FindingAggregate(rule, detail)
        if detail in kept:
            kept[detail].count += count

    def by_rule(self) -> dict[str, list[FindingAggregate]]:
        return {name: sorted(kept.values(), key=lambda finding: finding.detail) for name, kept in self._kept.items()}
