"""The lists of a report while they grow: files, network attempts, findings. Each keeps some items and counts all."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.report.distinct_counter import DistinctCounter
from workers.report.events import DENIED, ContactEvent, FileEvent, LookupEvent
from workers.report.rules.registry import FindingRule

MAX_PATH = 1024
MAX_DETAIL = 512
_PREFIX = 256
FILES_KEPT = 1000  # of each rank; the report shows 500 in all
ADDRESSES_KEPT = 1000
DETAILS_KEPT = 100  # of each rule, so that none can crowd out the others

# The ranks of files in a report: unimportant files must never displace important ones.
SENSITIVE, DENIED_RANK, CHANGED, READ, MISSED = range(5)


@dataclass(slots=True)
class FileAggregate:
    """The uses of one path."""

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
    """Files by path. `outside`: changed, or tried, where the job may not write."""

    def __init__(self) -> None:
        self._seen = DistinctCounter()
        self._by_rank: tuple[dict[str, FileAggregate], ...] = tuple({} for _ in range(5))

    @property
    def total(self) -> int:
        return self._seen.count

    def add(self, use: FileEvent, *, sensitive: bool, outside: bool) -> FileAggregate:
        """Add a use, and return the aggregate of its path, which is kept unless its rank is full."""
        path = use.path[: MAX_PATH + _PREFIX]  # it is shortened before it is cut
        self._seen.add(use.path)
        aggregate = self._remove(path) or FileAggregate(path)
        aggregate.ops |= use.ops
        aggregate.count += 1
        aggregate.failed += use.errno is not None
        aggregate.denied += use.errno in DENIED
        aggregate.sensitive |= sensitive
        aggregate.outside |= outside
        rank_files = self._by_rank[aggregate.rank]
        if len(rank_files) < FILES_KEPT:
            rank_files[path] = aggregate
        return aggregate

    def repeat(self, aggregate: FileAggregate, use: FileEvent) -> bool:
        """Count a use that `add` has put into this aggregate before, if it is kept. Then it cannot change the rank."""
        is_kept = self._by_rank[aggregate.rank].get(aggregate.path) is aggregate
        if is_kept:
            aggregate.count += 1
            aggregate.failed += use.errno is not None
            aggregate.denied += use.errno in DENIED
        return is_kept

    def _remove(self, path: str) -> FileAggregate | None:
        for rank_files in self._by_rank:
            if path in rank_files:
                return rank_files.pop(path)
        return None

    def kept(self) -> list[FileAggregate]:
        return [aggregate for rank_files in self._by_rank for aggregate in rank_files.values()]


@dataclass(slots=True)
class AddressAggregate:
    """Contacts with one address (`host` set) or lookups of one name (`name` set)."""

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
    """Contacts by address and port, and lookups by name."""

    def __init__(self) -> None:
        self._seen = DistinctCounter()
        self._kept: dict[str, AddressAggregate] = {}

    @property
    def total(self) -> int:
        return self._seen.count

    def contacted(self, contact: ContactEvent) -> None:
        aggregate = self._aggregate(f"{contact.family} {contact.host} {contact.port}", contact.family)
        if aggregate is None:
            return
        aggregate.host, aggregate.port, aggregate.count = contact.host, contact.port, aggregate.count + 1
        outcome = _outcome(contact.errno)
        if aggregate.outcome is None or OUTCOMES.index(outcome) < OUTCOMES.index(aggregate.outcome):
            aggregate.outcome, aggregate.errno = outcome, contact.errno

    def looked_up(self, lookup: LookupEvent) -> None:
        aggregate = self._aggregate(f"name {lookup.name}", "name")
        if aggregate is not None:
            aggregate.name, aggregate.count = lookup.name, aggregate.count + 1

    def _aggregate(self, key: str, family: str) -> AddressAggregate | None:
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
    """A finding, and how often it occurred."""

    rule: FindingRule
    detail: str
    count: int = 0


class FindingAggregates:
    """Findings by rule and detail."""

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
