"""Merge patches of JSON documents (RFC 7396)."""

from typing import Any


def apply_merge_patch(document: Any, patch: Any) -> Any:
    """Return a document with the changes of a merge patch. Neither argument is changed.

    Args:
        document: The JSON value before.
        patch: An object changes members, null removes one. Any other value, also a list, replaces the document.
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge_patch(result.get(name), value)
    return result
