"""Names and slugs of the Bencher API."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_jobs.resource_names import is_slug, slugify, validate_resource_name, validate_slug, with_random_suffix


@given(name=st.text(max_size=100))
def test_the_slug_of_any_name_is_a_slug_that_stays(name):
    slug = slugify(name)
    assert is_slug(slug)
    assert slugify(slug) == slug


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Rack 7", "rack-7"),
        ("  a__b..C  ", "a-b-c"),
        ("Größe", "groe"),  # NFKD leaves the ß, which is not ASCII
        ("Café", "cafe"),
        ("x" * 70, "x" * 64),
        ("x" * 63 + " y", "x" * 63),
    ],
)
def test_a_slug_is_made_of_a_name(name, slug):
    assert slugify(name) == slug


def test_a_name_without_letters_has_a_random_slug():
    assert slugify("!!!") != slugify("!!!")
    assert len(slugify("\N{SNOWMAN}")) == 8


@pytest.mark.parametrize("text", ["", "-a", "a-", "a--b", "A", "a_b", "ä", "x" * 65, "a b", "a\n"])
def test_other_texts_are_no_slugs(text):
    assert not is_slug(text)
    assert validate_slug(text)


@pytest.mark.parametrize("slug", ["a", "a-b", "7", "x" * 64])
def test_a_suffix_keeps_a_slug_within_its_length(slug):
    suffixed = with_random_suffix(slug)
    assert is_slug(suffixed)
    assert suffixed.rpartition("-")[0] == slug[:55].rstrip("-")


@pytest.mark.parametrize(("name", "is_valid"), [("a", True), ("ä" * 32, True), ("ä" * 33, False), ("", False), (" a", False), ("a\n", False), ("a b", True)])  # fmt: skip
def test_a_name_has_1_to_64_bytes_and_no_blanks_at_its_ends(name, is_valid):
    assert (validate_resource_name(name) is None) == is_valid
