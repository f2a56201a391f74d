"""Engines by name, as Django names its caches: `engine_named("bubblewrap", first_uid=61000)`."""

from __future__ import annotations

import importlib
from typing import Any

from workers.engines.contract import Engine

ENGINES = {
    "bubblewrap": "workers.engines.bubblewrap.engine.BubblewrapEngine",
    "oci": "workers.engines.oci.engine.OciEngine",
    "restricted": "workers.engines.restricted.engine.RestrictedEngine",
    "null": "workers.engines.null.NullEngine",
}


def engine_named(name: str, **options: Any) -> Engine:
    """Return a new engine.

    Args:
        name: A name of `ENGINES`, or the dotted path of a class.
        options: The arguments of its constructor.

    Raises:
        LookupError: No engine has this name.
        EngineUnavailable: An option is invalid, or the engine may not be used here.
    """
    path = ENGINES.get(name, name)
    module, _, attribute = path.rpartition(".")
    if not module:
        raise LookupError(f"no engine is called {name!r}; there are {', '.join(sorted(ENGINES))}")
    engine: Engine = getattr(importlib.import_module(module), attribute)(**options)
    return engine
