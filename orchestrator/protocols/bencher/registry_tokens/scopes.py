"""Scopes of docker clients, such as `repository:name:pull,push`, and what a caller's rights permit of them."""

from collections.abc import Iterable
from typing import Final

from orchestrator.images.errors import RegistryError
from orchestrator.images.repositories import find_project, require_name
from orchestrator.images.tokens import PULL, PUSH, RepositoryAccess
from orchestrator.protocols.bencher.authentication import BencherCaller
from orchestrator.protocols.bencher.errors import bad_request

MAX_REPOSITORIES: Final = 16
_ACTIONS: Final = (PULL, PUSH)


def requested_actions(scopes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the actions by repository that scopes ask for; `*` are all. Scopes of other kinds are ignored.

    Args:
        scopes: Values of the parameter `scope`; each may have several scopes with blanks between them.

    Raises:
        ApiError: 400; there are too many repositories.
    """
    found: dict[str, set[str]] = {}
    for scope in (part for value in scopes for part in value.split()):
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        if kind != "repository" or not _is_name(name):
            continue
        found.setdefault(name, set()).update(_ACTIONS if actions == "*" else actions.split(","))
    if len(found) > MAX_REPOSITORIES:
        raise bad_request(f"scope: May name at most {MAX_REPOSITORIES} repositories.")
    return {name: tuple(action for action in _ACTIONS if action in actions) for name, actions in found.items()}


def permitted_access(caller: BencherCaller, requested: dict[str, tuple[str, ...]]) -> list[RepositoryAccess]:
    """Return what a caller may do in the requested repositories.

    A token is issued in any case: the registry refuses what it does not permit. A repository that the caller may not
    see looks like one that does not exist.
    """
    return [_access(caller, name, actions) for name, actions in requested.items()]


def _access(caller: BencherCaller, name: str, requested: tuple[str, ...]) -> RepositoryAccess:
    project = find_project(name)
    if project is None:
        return RepositoryAccess(name, None, requested, ())
    rights = {PULL: caller.can_see, PUSH: caller.may_change}
    actions = tuple(action for action in requested if rights[action](project))
    if not actions:
        return RepositoryAccess(name, None, requested, ())
    return RepositoryAccess(name, project.uuid, requested, actions, project.organization.uuid)


def _is_name(text: str) -> bool:
    try:
        require_name(text)
    except RegistryError:
        return False
    return True
