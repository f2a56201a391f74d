"""Every variable that the product reads is in docs/settings.md, with a text and its default."""

import re

import pytest

from config.paths import BASE_DIR
from config.settings_reference import UndocumentedSettingError, reference, sections

READ = re.compile(r'\benv\.\w+\(\s*"([A-Z0-9_]+)"')


def rows(source: str) -> list[tuple[list[str], list[str], str]]:
    return [(row.names, row.defaults, row.text) for _, found in sections(source, set()) for row in found]


def test_every_variable_that_the_settings_read_has_a_row():
    read = {name for path in (BASE_DIR / "config").glob("*.py") for name in READ.findall(path.read_text())}
    assert len(read) > 100
    named = {
        name for line in reference().splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)
    }
    assert read - named == set()


def test_adjacent_variables_share_a_text():
    source = '#: Two of\n#: them.\nA = env.int("A", default=1 << 20)\nB_BYTES = env.int("B_BYTES", default=1 << 20)\n'
    assert rows(source) == [(["A", "B_BYTES"], ["1048576", "1 MiB"], "Two of them.")]


@pytest.mark.parametrize(
    ("read", "default"),
    [
        ('env.bool("A", default=True)', "yes"),
        ('env.list("A", default=[])', "empty"),
        ('env.list("A", default=["x", "y"])', "`x,y`"),
        ('env.str("A", default=str(STATE_DIR / "images"))', "`STATE_DIR/images`"),
        ('env.bool("A", default=is_loopback_url(PUBLIC_URL))', "see text"),
        ('env.float("A", default=30.0)', "30"),
        ('env.json("A", default={})', "empty"),
    ],
)
def test_a_default_is_printed_as_an_operator_writes_it(read, default):
    assert rows(f"#: A.\nA = {read}\n") == [(["A"], [default], "A.")]


@pytest.mark.parametrize(
    "source", ['A = env.int("A", default=1)\n', '#: A.\nA = env.int("A", default=1)\n\nB = env.int("B", default=1)\n']
)
def test_a_variable_without_a_text_is_an_error(source):
    with pytest.raises(UndocumentedSettingError):
        rows(source)
