"""Finds or creates the named resources of a project: branches, testbeds, benchmarks, measures."""

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.dispatch import receiver
from django.utils import timezone

from orchestrator.results.models import Benchmark, Branch, Measure, ProjectResource, Testbed
from runtime_jobs.db_outage import session_opened
from runtime_jobs.models import Project
from runtime_jobs.prepared_queries import fetch_all
from runtime_jobs.resource_names import is_slug, slugify, with_random_suffix
from workers.models import HardwareSpec
from workers.registry.models import spec_archived

T = TypeVar("T", bound=ProjectResource)

NAMES_PER_QUERY = 5000  # a statement has at most 65,535 values
MAX_KNOWN_NAMES = 10_000  # that a process remembers
# Measures of the adapters and of the runner itself: name and unit by slug.
BUILT_IN_MEASURES = {
    "latency": ("Latency", "nanoseconds (ns)"),
    "throughput": ("Throughput", "operations / second (ops/s)"),
    "build-time": ("Build Time", "seconds (s)"),
    "file-size": ("File Size", "bytes (B)"),
}
_BUILT_IN_SLUGS = {name: slug for slug, (name, _) in BUILT_IN_MEASURES.items()}
_DEFAULT_UNITS = "Measure (units)"
# A benchmark with this end of its name raises no alert. The name counts without it.
_IGNORED_ENDS = ("_bencher_ignore", "BencherIgnore", "-bencher-ignore")


_REMEMBERED: Final = (Benchmark, Measure)
# The keys of these by table, project and name. Nothing renames or deletes them but an operator in SQL.
_known: dict[tuple[str, int, str], int] = {}


class UnknownResource(Exception):
    """The results name a resource by a UUID that no resource of the project has."""


class ResourceLimitReached(Exception):
    """The project has as many branches, testbeds, benchmarks or measures as `RESOURCES_PER_PROJECT` allows."""


@dataclass(frozen=True)
class WantedResource:
    """A resource to find or to create.

    Attributes:
        key: The UUID, slug or name by which a request or a result names it.
        name: The name of a new one.
        slug: The preferred slug of a new one.
        columns: Other columns of a new one.
    """

    key: str
    name: str
    slug: str
    columns: dict[str, Any] = field(default_factory=dict)


def get_or_create_branch(project: Project, key: str) -> Branch:
    """Find the branch of a project by UUID, slug or name, or create one with this name."""
    return Branch.objects.get(pk=find_or_create(Branch, project, [_wanted(key)])[key])


def get_or_create_testbed(project: Project, key: str) -> Testbed:
    """Find the testbed of a project by UUID, slug or name, or create one with this name."""
    found = find_or_create(Testbed, project, [_wanted(key)])[key]
    return Testbed.objects.select_related("spec").get(pk=found)


def find_testbed(project: Project, key: str) -> Testbed | None:
    """Find the testbed of a project by UUID, slug or name.

    Raises:
        UnknownResource: The key is a UUID, and the project has no such testbed.
    """
    found = _find(Testbed, project, [_wanted(key)])
    if key in found:
        return Testbed.objects.select_related("spec").get(pk=found[key])
    _refuse_unknown(Testbed, [key])
    return None


def benchmark_keys(project: Project, keys: Collection[str]) -> dict[str, int]:
    """Find or create the benchmarks that results name, and return their keys. Results may name 50,000 benchmarks.

    Raises:
        UnknownResource: A key is a UUID, and the project has no such benchmark.
    """
    names = {key: _without_ignored_end(key) for key in keys}
    found = find_or_create(Benchmark, project, [_wanted(name) for name in set(names.values())])
    return {key: found[name] for key, name in names.items()}


def measure_keys(project: Project, keys: Collection[str]) -> dict[str, int]:
    """Find or create the measures that results name, and return their keys.

    Raises:
        UnknownResource: A key is a UUID, and the project has no such measure.
    """
    return find_or_create(Measure, project, [_wanted_measure(key) for key in keys])


def find_or_create(model: type[T], project: Project, wanted: Sequence[WantedResource]) -> dict[str, int]:
    """Return the key of a row for each: the one with this name, UUID or slug, in this order, else a new one.

    Requests at the same time may create the same resource: the unique name decides, and all of them get that row. Each
    waits for the names that another one has inserted, so all of them insert in the order of slug and name. A slug that
    another resource has gets a random suffix.

    Raises:
        UnknownResource: A key is a UUID, and the project has no such resource.
        ResourceLimitReached: The project may not have so many.
    """
    found = _find(model, project, wanted)
    for is_suffixed in (False, True):
        missing = [item for item in wanted if item.key not in found]
        if not missing:
            break
        _refuse_unknown(model, [item.key for item in missing])
        if not is_suffixed:
            require_room(model, project, len(missing))
        rows = [
            model(
                project=project,
                name=item.name,
                slug=with_random_suffix(item.slug) if is_suffixed else item.slug,
                **item.columns,
            )
            for item in sorted(missing, key=lambda item: (item.slug, item.name))
        ]
        model._default_manager.bulk_create(rows, ignore_conflicts=True)  # noqa: SLF001 Django's name
        found |= _find(model, project, missing)
    return found


def require_room(model: type[T], project: Project, number: int) -> None:
    """Check that a project may have so many more resources of a kind. Nothing deletes benchmarks.

    Requests at the same time may exceed the limit together, each by what it adds.

    Raises:
        ResourceLimitReached: It may not.
    """
    limit = settings.RESOURCES_PER_PROJECT
    stored = model._default_manager.filter(project=project).count() if limit else 0  # noqa: SLF001 Django's name
    if limit and stored + number > limit:
        kind = model._meta.verbose_name_plural  # noqa: SLF001 Django's name
        raise ResourceLimitReached(
            f"The project has {stored} {kind}, and this request would add {number}. RESOURCES_PER_PROJECT is {limit}. "
            "Use existing names, or ask an operator to raise the limit."
        )


def _refuse_unknown(model: type[T], keys: Iterable[str]) -> None:
    """Raise `UnknownResource` for the first key that is a UUID: a new resource gets a UUID of its own."""
    if unknown := next((key for key in keys if _as_uuid(key)), None):
        raise UnknownResource(f"The project has no {model._meta.verbose_name} with the UUID {unknown}.")  # noqa: SLF001 Django's name


def _find(model: type[T], project: Project, wanted: Sequence[WantedResource]) -> dict[str, int]:
    names = _keys_by_name(model, project, {item.name for item in wanted})
    found = {item.key: names[item.name] for item in wanted if item.name in names}
    left = [item for item in wanted if item.key not in found]
    uuids = {item.key: uuid for item in left if (uuid := _as_uuid(item.key))}
    by_uuid = _keys_by(model, project, "uuid", set(uuids.values()))
    found |= {key: by_uuid[uuid] for key, uuid in uuids.items() if uuid in by_uuid}
    slugs = {item.key: item.slug for item in left if is_slug(item.key)}
    by_slug = _keys_by(model, project, "slug", set(slugs.values()))
    return found | {key: by_slug[slug] for key, slug in slugs.items() if slug in by_slug}


@receiver(session_opened)
def forget_names(**_: object) -> None:
    """Read all names again when they are next used, because a row that one of them stood for may be gone."""
    _known.clear()


def _keys_by_name(model: type[T], project: Project, names: Collection[str]) -> dict[str, int]:
    """Return the keys of resources by their names. Outside of a transaction a process reads each name of metrics once.

    What a transaction has inserted may be rolled back, and its callers cannot repeat it without the names.
    """
    if connection.in_atomic_block or model not in _REMEMBERED:
        return _keys_by(model, project, "name", names)
    table = model._meta.db_table  # noqa: SLF001 Django's name
    found = {name: key for name in names if (key := _known.get((table, project.pk, name))) is not None}
    read = _keys_by(model, project, "name", [name for name in names if name not in found])
    if len(_known) + len(read) > MAX_KNOWN_NAMES:
        _known.clear()
    _known.update({(table, project.pk, name): key for name, key in itertools.islice(read.items(), MAX_KNOWN_NAMES)})
    return found | read


def _keys_by(model: type[T], project: Project, column: str, values: Collection[Any]) -> dict[Any, int]:
    keys: dict[Any, int] = {}
    ordered = list(values)
    table = model._meta.db_table  # noqa: SLF001 Django's name
    sql = f"SELECT {column}, id FROM {table} WHERE project_id = %s AND {column} = ANY (%s)"  # noqa: S608 our own names
    for begin in range(0, len(ordered), NAMES_PER_QUERY):
        keys |= dict(fetch_all(sql, [project.pk, ordered[begin : begin + NAMES_PER_QUERY]]))
    return keys


def _wanted(key: str) -> WantedResource:
    return WantedResource(key, key, slugify(key))


def _wanted_measure(key: str) -> WantedResource:
    slug = _BUILT_IN_SLUGS.get(key, key)
    name, units = BUILT_IN_MEASURES.get(slug, (key, _DEFAULT_UNITS))
    return WantedResource(key, name, slugify(slug), {"units": units})


def _without_ignored_end(name: str) -> str:
    ended = next((end for end in _IGNORED_ENDS if name.endswith(end) and name != end), "")
    return name.removesuffix(ended)


def _as_uuid(key: str) -> UUID | None:
    """Return the UUID in its canonical form, or None. A name of 32 hexadecimal digits is a name."""
    try:
        return UUID(key) if len(key) == 36 else None
    except ValueError:
        return None


@receiver(spec_archived)
def clear_archived_spec(spec: HardwareSpec, **_: Any) -> None:
    """Remove an archived hardware spec from the testbeds that have it as their default."""
    Testbed.objects.filter(spec=spec).update(spec=None, modified_at=timezone.now())
