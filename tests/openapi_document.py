"""The committed OpenAPI document. `test_schema_view.py` compares it with the served one, which takes seconds to generate."""

from functools import cache
from typing import Any

import yaml

from config.paths import BASE_DIR

FILE = BASE_DIR / "docs" / "openapi.yaml"


@cache
def openapi_document() -> dict[str, Any]:
    """By libyaml: the loader in Python takes seconds."""
    return yaml.load(FILE.read_text(), Loader=yaml.CSafeLoader)
