"""JSON of the actor of a change, which rows store as text."""


def serialize_actor(text: str) -> dict[str, str] | None:
    """Return an actor that is stored as `kind:id`, or None for an empty text."""
    kind, _, name = text.partition(":")
    return {"kind": kind, "id": name} if text else None
