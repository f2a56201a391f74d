"""The page about this protocol names tests, codes and numbers that exist."""

import re
from pathlib import Path

from orchestrator.protocols.delta.runners import serializers
from orchestrator.protocols.delta.states import CANCEL, CATEGORIES, STALE

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "protocols" / "delta.md").read_text()


def test_every_test_that_it_names_exists():
    here = {path.name: path.read_text() for path in Path(__file__).parent.rglob("test_*.py")}
    everything = "\n".join(here.values())
    for file, name in re.findall(r"`(test_[a-z_]+\.py)::(test_[a-z_]+)", PAGE):
        assert f"def {name}(" in here[file], (file, name)
    for name in re.findall(r"`(test_[a-z_]+)`", PAGE):
        assert f"def {name}(" in everything, name
    for file in re.findall(r"`(test_[a-z_]+\.py)`", PAGE):
        assert file in here
    for path in re.findall(r"`((?:tests|runtime_jobs)/[a-z_/]+\.(?:py|yaml))`", PAGE):
        assert (ROOT / path).is_file(), path
    table = PAGE.partition("## The compliance checklist")[2]
    assert all("test" in line for line in re.findall(r"^\| (?!a runner|and the|---).*$", table, re.MULTILINE))


def test_every_word_of_the_tables_is_explained():
    for word in {*CANCEL.values(), *STALE.values(), *STALE, *CATEGORIES.values(), *map(str, CANCEL)}:
        assert f"`{word}`" in PAGE, word


def test_all_contradictions_are_answered():
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, 31))


def test_its_limits_are_those_of_the_code():
    assert f"{serializers.MAX_ARTIFACTS} artifacts" in PAGE
    assert f"a summary of {serializers.MAX_TEXT_LENGTH // 1024} KiB" in PAGE
