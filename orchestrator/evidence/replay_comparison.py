"""Compares the manifests of a job and of its replay. Standard library only: the command line imports it, too.

Only `outputs` decide. Differences of the environment and of the logs are notes.
"""

import marshal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

MATCH, DIVERGED, UNVERIFIABLE = "match", "diverged", "unverifiable"
VERDICTS: Final = (MATCH, DIVERGED, UNVERIFIABLE)
MISSING: Final = "(missing)"  # the value where one side has no member of this name
MAX_NOTES: Final = 20
_NOTED: Final = ("environment", "logs")


@dataclass(frozen=True)
class Difference:
    """A place at which two JSON values differ.

    Attributes:
        path: The place, as a JSON Pointer (RFC 6901).
        expected: The value of the first one, or `MISSING`.
        found: The value of the second one, or `MISSING`.
    """

    path: str
    expected: Any
    found: Any


@dataclass(frozen=True)
class ManifestComparison:
    """The result of a comparison.

    Attributes:
        verdict: One of `VERDICTS`.
        difference: The first difference of the outputs, or None.
        reasons: Why the replay verifies nothing, for the verdict `unverifiable`.
        notes: Differences that decide nothing.
    """

    verdict: str
    difference: Difference | None
    reasons: tuple[str, ...]
    notes: tuple[Difference, ...]


def compare_manifests(
    expected: Mapping[str, Any], found: Mapping[str, Any], *, caveats: Sequence[str] = ()
) -> ManifestComparison:
    """Compare the manifest of a job with that of its replay.

    Args:
        expected: The manifest of the job.
        found: The manifest of the replay.
        caveats: What of the job was not fixed when the replay was requested, such as access to the network.
    """
    reasons = list(caveats)
    reasons += [f"The inputs differ at {one.path}." for one in _of_member("inputs", expected, found)]
    for whose, manifest in (("job", expected), ("replay", found)):
        reasons += [f"Of the {whose}: {reason}" for reason in manifest.get("inconclusive", ())]
    difference = next(_of_member("outputs", expected, found), None)
    verdict = UNVERIFIABLE if reasons else MATCH if difference is None else DIVERGED
    noted = (one for name in _NOTED for one in _of_member(name, expected, found))
    return ManifestComparison(verdict, difference, tuple(reasons), tuple(islice(noted, MAX_NOTES)))


def _of_member(name: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences of one member of two manifests.

    Nearly all are equal. Equal bytes of `marshal` are found several times as fast as no difference of the values: with
    them a reader confirms 0.52 times as many records as it only parses and hashes, else 0.30 times. Version 2 of that
    format has no references, and distinguishes true from 1.
    """
    first, second = expected.get(name), found.get(name)
    if marshal.dumps(first, 2) != marshal.dumps(second, 2):
        yield from differences(first, second, f"/{name}")


class ContradictedVerdict(ValueError):
    """The recorded verdict of a replay is not the one that its manifests have."""


def confirm_record(record: Mapping[str, Any]) -> ManifestComparison | None:
    """Compare the manifests in the record of a replay again, without the server that has recorded the verdict.

    Args:
        record: An entry of the file of replays in an audit bundle: `expected`, `found`, `caveats`, `verdict`,
            `difference`.

    Returns:
        The comparison, or None: the replay had no verdict when it was recorded.

    Raises:
        ContradictedVerdict: The record has another verdict or another difference than its manifests.
    """
    if record["verdict"] is None:
        return None
    compared = compare_manifests(record["expected"], record["found"], caveats=record["caveats"])
    difference = None if compared.difference is None else vars(compared.difference)
    if (compared.verdict, difference) != (record["verdict"], record["difference"]):
        found, place = compared.verdict, "" if difference is None else f" at {difference['path']}"
        recorded = f"The replay {record['jobId']} is recorded as {record['verdict']}"
        raise ContradictedVerdict(f"{recorded}, and its manifests are {found}{place}.")
    return compared


def differences(expected: Any, found: Any, path: str = "") -> Iterator[Difference]:
    """Yield the places at which two JSON values differ, by the names of members and then by place in lists.

    Args:
        expected: The first value.
        found: The second value.
        path: The place of both values, as a JSON Pointer.
    """
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for name in sorted({*expected, *found}):
            place = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            yield from differences(expected.get(name, MISSING), found.get(name, MISSING), place)
    elif isinstance(expected, list) and isinstance(found, list):
        for number in range(max(len(expected), len(found))):
            first, second = (values[number] if number < len(values) else MISSING for values in (expected, found))
            yield from differences(first, second, f"{path}/{number}")
    elif isinstance(expected, bool) is not isinstance(found, bool) or expected != found:  # True equals 1 in Python
        yield Difference(path, expected, found)
