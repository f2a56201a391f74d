"""Places as clients get them: the same in every process, without numbers of other tenants, and not to be guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.events.pages import JOB, OPERATOR, Place
from orchestrator.events.place_tokens import InvalidPlace, decode_place, encode_place

PLACES = st.builds(Place, st.integers(0, 2**48 - 1), st.sampled_from([JOB, OPERATOR]), st.integers(0, 2**48 - 1))


@given(PLACES)
def test_a_place_survives_a_round_trip(place):
    assert decode_place(encode_place(place)) == place


def test_neighbours_have_nothing_in_common():
    first, second = encode_place(Place(1000, JOB, 1)), encode_place(Place(1000, JOB, 2))
    assert len(first) == len(second) == 22
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10


@given(st.text(max_size=40))
def test_any_other_text_is_refused(text):
    with pytest.raises(InvalidPlace):
        decode_place(text)


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: f"{t}=", lambda t: f"{t}A", lambda t: t.swapcase()])
def test_a_changed_place_is_refused(change):
    text = encode_place(Place(1000, JOB, 1))
    with pytest.raises(InvalidPlace):
        decode_place(change(text))


def test_a_place_of_another_installation_is_refused_and_that_of_an_older_key_is_not(settings):
    text = encode_place(Place(1000, JOB, 1))
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "b" * 50, [settings.SECRET_KEY]
    assert decode_place(text) == Place(1000, JOB, 1)
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(InvalidPlace):
        decode_place(text)
