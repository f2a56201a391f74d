"""Masking of streams: against a plain implementation, for every split, order and kind of secret."""

import base64
import html
import itertools
import json
import os
import shlex
import subprocess
import urllib.parse
from pathlib import Path
from xml.etree import ElementTree as ET
from xml.sax import saxutils

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime_jobs import scrubbing
from runtime_jobs.masked_forms import MAX_ENCODED_LINES, masked_forms
from runtime_jobs.scrubbing import HeldBytes, Scrubbed, Scrubber, ScrubberCache
from tests.runtime_jobs import plain_scrubbing

EXAMPLES = int(os.environ.get("PROOF_SCRUBBING", "300"))
SECRETS = [
    "hunter2!",
    "p@ss/w0rd+%&",
    "zwölf'\"Monkeys\\",
    "-----BEGIN KEY-----\nMIIabcdefgh\r\nijklmnop==\n-----END KEY-----\n",
]

# Few letters, so that secrets overlap, are periodic and occur within each other.
few_letters = st.text("ab*\n", min_size=1, max_size=9).map(str.encode)
any_bytes = st.binary(min_size=1, max_size=12)
secrets = st.lists(st.one_of(few_letters, any_bytes), max_size=5)


@st.composite
def texts(draw, values):
    """Text in which the secrets, their forms and parts of them are frequent."""
    pieces = [b"a", b"b", b"\n", b"*", b" log line "]
    for value in values:
        forms = sorted(masked_forms(value))
        pieces += [value, forms[0], forms[-1], value[: len(value) // 2], value[len(value) // 2 :]]
    return b"".join(draw(st.lists(st.sampled_from(pieces), max_size=25)))


def parts_of(text, cuts):
    borders = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(borders)]


def streamed(scrubber, parts, held=None):
    held, outputs = held or HeldBytes(), []
    for part in parts:
        step = scrubber.feed(held, part)
        held = step.held
        outputs.append(step.output)
    return [*outputs, scrubber.finish(held).output]


@settings(max_examples=EXAMPLES)
@given(data=st.data(), values=secrets, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_every_split_gives_what_the_plain_implementation_gives_for_the_whole(data, values, cuts):
    text = data.draw(texts(values))
    expected = plain_scrubbing.scrubbed(text, values)
    scrubber = Scrubber(values)
    assert scrubber.scrub(text) == expected
    assert b"".join(streamed(scrubber, parts_of(text, cuts))) == expected
    assert b"".join(streamed(scrubber, [bytes([byte]) for byte in text])) == expected


@settings(max_examples=EXAMPLES)
@given(data=st.data(), values=secrets)
def test_no_more_is_held_back_than_may_become_a_secret(data, values):
    text = data.draw(texts(values))
    held = Scrubber(values).feed(HeldBytes(), text).held
    assert len(held.data) <= plain_scrubbing.longest_open_suffix(text, values)
    assert text.endswith(held.data)
    assert 0 <= held.masked <= len(held.data)


@settings(max_examples=EXAMPLES)
@given(
    data=st.data(), values=st.lists(st.binary(min_size=6, max_size=12), min_size=1, max_size=4), cut=st.integers(0, 400)
)
def test_what_was_returned_never_ends_within_a_secret(data, values, cut):
    """A reader of a live log has the first part only: it must not have the beginning of a form that the second completes."""
    text = data.draw(texts(values))
    first, second = text[: cut % (len(text) + 1)], text[cut % (len(text) + 1) :]
    shown = Scrubber(values).feed(HeldBytes(), first)
    raw = len(first) - len(shown.held.data)  # bytes that were decided
    for begin, end in plain_scrubbing.occurrences(first + second, plain_scrubbing.forms_of(values)):
        assert begin >= raw or end <= len(first), "it began before the bytes that are held back, and ended after them"


@settings(max_examples=EXAMPLES)
@given(data=st.data(), values=secrets, size=st.integers(1, 7))
def test_the_search_in_pieces_finds_what_one_search_finds(data, values, size):
    text = data.draw(texts(values))
    expected = Scrubber(values).scrub(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scrubbing, "SEARCH_BYTES", size)
        assert Scrubber(values).scrub(text) == expected


@settings(max_examples=EXAMPLES)
@given(
    unit=st.text("ab", min_size=1, max_size=3),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    text=st.text("ab", max_size=60),
)
@example(unit="a", lengths=[6, 7, 8, 9], text="a" * 9)
@example(unit="ab", lengths=[4, 5, 6, 7], text="babababab")
def test_periodic_forms_that_are_left_out_change_nothing(unit, lengths, text):
    values = [(unit * 30)[:length].encode() for length in lengths]
    assert Scrubber(values).scrub(text.encode()) == plain_scrubbing.scrubbed(text.encode(), values)


def test_nested_periodic_secrets_are_searched_once():
    forms = {b"a" * size for size in range(1, 200)}
    assert sorted(scrubbing._without_covered(forms), key=len) == [b"a", b"aa"]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_programs_make_of_a_secret_is_masked(secret):
    raw = secret.encode()
    printed = [
        secret,
        *[base64.b64encode(b"x" * shift + raw).decode() for shift in range(3)],
        *[base64.urlsafe_b64encode(raw + b"y" * shift).decode() for shift in range(3)],
        raw.hex(),
        raw.hex().upper(),
        urllib.parse.quote(secret),
        urllib.parse.quote(secret, safe=""),
        urllib.parse.quote_plus(secret),
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        json.dumps(json.dumps(secret)),
        shlex.quote(secret),
        secret.replace("\n", "\r\n"),
    ]
    scrubber = Scrubber([secret])
    for text in printed:
        output = scrubber.scrub(f"before {text} after".encode())
        assert b"***" in output
        left = output.replace(b"***", b"").removeprefix(b"before ").removesuffix(b" after")
        assert len(left) < max(9, len(text) // 5), f"{text!r} left {left!r}"
        assert not any(raw[place : place + 6] in output for place in range(len(raw) - 5)), text


def test_what_encoders_of_other_libraries_make_of_a_secret_is_masked():
    """The file was recorded from the libraries that it names: each leaves other characters as they are."""
    recorded = json.loads(Path(__file__).with_name("recorded_spellings.json").read_text())
    scrubber = Scrubber([recorded["secret"]])
    shown = {name: scrubber.scrub(f"<{text}>".encode()) for name, text in recorded["spellings"].items()}
    assert len(shown) > 40
    assert {name: text for name, text in shown.items() if text != b"<***>"} == {}


@pytest.mark.parametrize("secret", [*SECRETS, "plain0token"])
def test_what_two_encoders_reports_and_other_cases_make_of_a_secret_is_masked(secret):
    raw = secret.encode()
    element = ET.Element("failure", {"message": secret})
    element.text = secret
    report = ET.tostring(element)
    printed = {
        "base32": [base64.b32encode(raw), base64.b32encode(raw).lower()],
        "base64 of base64": [base64.b64encode(base64.b64encode(raw))],
        "base64 of base64 of a line": [base64.b64encode(base64.b64encode(raw + b"\n"))],
        "percent of percent": [
            urllib.parse.quote(urllib.parse.quote(secret, safe=safe), safe="").encode() for safe in ("", "/")
        ],
        "markup": [
            html.escape(secret).encode(),
            saxutils.escape(secret).encode(),
            saxutils.quoteattr(secret)[1:-1].encode(),
        ],
        "case": [secret.upper().encode(), secret.lower().encode(), secret[:1].upper().encode() + secret[1:].encode()],
        "doubled quotes": [secret.replace("'", "''").encode(), secret.replace('"', '""').encode()],
    }
    scrubber = Scrubber([secret])
    for name, texts in printed.items():
        for text in texts:
            output = scrubber.scrub(b"<" + text + b">")
            left = output.replace(b"***", b"")
            assert len(left) <= (9 if "line" in name else 2), (name, text, output)
    assert scrubber.scrub(report) == b'<failure message="***">***</failure>'


def test_the_members_and_other_layouts_of_a_secret_in_json_are_masked():
    """`jq -c` prints the secret in one line, `jq -r .key` one member of it."""
    key = "-----BEGIN KEY-----\nMIIabcdefgh+/\n-----END KEY-----\n"
    document = {"type": "account", "id": 12345678, "auth": [{"key": key, "short": "pin7", "on": True}]}
    scrubber = Scrubber([json.dumps(document, indent=2)])
    printed = [
        json.dumps(document),
        json.dumps(document, separators=(",", ":")),
        key,
        base64.b64encode(key.encode()).decode(),
        urllib.parse.quote(key),
        "12345678",
        json.dumps(key)[1:-1],
    ]
    assert {text: scrubber.scrub(f"<{text}>".encode()) for text in printed} == dict.fromkeys(printed, b"<***>")
    assert scrubber.scrub(b"pin7 true key") == b"pin7 true key"
    for broken in ("[" * 100_000, '{"a": 1', "[" + "9" * 5000 + "]", "[NaN]"):
        assert Scrubber([broken]).scrub(f"<{broken}>".encode()) == b"<***>"


@pytest.mark.parametrize(
    "script",
    [
        'printf %q "$S"',
        'set -x; : "$S"',
        'printf %s "$S" | base64 -w0',
        "printf %s \"$S\" | od -An -tx1 | tr -d ' \\n'",
    ],
)
@pytest.mark.parametrize("secret", SECRETS)
def test_what_bash_prints_is_masked(secret, script):
    shell = subprocess.run(
        ["bash", "-c", script],
        env={"S": secret, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    output = Scrubber([secret]).scrub(shell.stdout + shell.stderr)
    assert b"***" in output
    raw = secret.encode()
    assert not any(raw[place : place + 6] in output for place in range(len(raw) - 5))


@pytest.mark.parametrize(
    "encode", [bytes.hex, lambda line: line.hex().upper(), lambda line: base64.b64encode(line).decode()]
)
def test_each_line_of_a_secret_is_masked_in_its_encoded_forms(encode):
    """A program may encode one line of a key."""
    secret = b"first line 0123456789\nsecond line abcdef"
    first, second = secret.split(b"\n")
    assert Scrubber([secret]).scrub(f"<{encode(first)}> <{encode(second)}>".encode()) == b"<***> <***>"


def test_a_secret_whose_beginning_is_in_a_missing_part_shows_no_line_in_hexadecimal_digits():
    secret = b"first line 0123456789\nsecond line abcdef"
    scrubber = Scrubber([secret])
    before = scrubber.interrupt(scrubber.feed(HeldBytes(), b"token=").held)
    shown = b"".join(streamed(scrubber, [secret.hex()[10:].encode() + b"\n"], before.held))
    assert b"second".hex().encode() not in shown


def test_further_lines_than_the_limit_are_masked_as_they_are_only():
    lines = [b"line %06d" % number for number in range(MAX_ENCODED_LINES + 1)]
    scrubber = Scrubber([b"\n".join(lines)])
    last, further = lines[-2:]
    assert scrubber.scrub(b" ".join([last, last.hex().encode(), further])) == b"*** *** ***"
    assert further.hex().encode() in scrubber.scrub(further.hex().encode())


@pytest.mark.parametrize("command", ["base64", "base64 -w64", "base64 -w0"])
@pytest.mark.parametrize("end", ["", "\\n"])
def test_wrapped_base64_of_a_long_secret_is_masked(command, end):
    secret = "".join(chr(33 + number * 7 % 90) for number in range(200))
    script = f'printf "%s{end}" "$S" | {command}'
    environment = {"S": secret, "PATH": os.environ["PATH"]}
    printed = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=True).stdout
    output = Scrubber([secret]).scrub(printed)
    left = output.replace(b"***", b"").replace(b"\n", b"")
    assert len(left) <= 8, left


@pytest.mark.parametrize(
    ("values", "text", "expected"),
    [
        ([], "hunter2", "hunter2"),
        (["", "hunter2"], "before hunter2 after", "before *** after"),
        (["hunter2"], "hunter2hunter2", "******"),
        (["abc", "abcdef", "cde"], "xabcdex abcdefg", "x***x ***g"),
        (["aXb", "bXc"], "aXbXc", "***"),
        (["***"], "a***b", "a***b"),
        (["a.c(+"], "abc a.c(+", "abc ***"),
        (["x"], "xyx", "***y***"),
        (["hunter"], "aHVudGVy", "***"),
        (["short"], "c2hvcnQ=", "c2hvcnQ="),
        (["hunter2-and-more"], "stopped in hunter", "stopped in ***"),
        (["hunter2-and-more"], "stopped in hunte", "stopped in hunte"),
        (["hunter2-and-more"], "stopped in hunter\n", "stopped in hunter\n"),
        (["abcd"], "xab", "x***"),
        (["abcd"], "xa", "xa"),
        (["abcdefghijkl", "cX"], "abc", "ab***"),
        (["secret", "cretaceous period"], "a secretaceous", "a ***"),
    ],
)
def test_examples(values, text, expected):
    assert Scrubber(values).scrub(text.encode()) == expected.encode()


@pytest.mark.parametrize("secret", SECRETS)
def test_a_stream_that_ends_within_a_secret_shows_little_of_it(secret):
    """A form that breaks off within the second line is no spelling of the value or of a line."""
    scrubber = Scrubber([secret])
    for form in sorted(masked_forms(secret.encode())):
        for cut in range(1, len(form)):
            shown = b"".join(streamed(scrubber, [b"token=", form[:cut]]))
            assert not shown.endswith(form[:cut][:6]) or cut < 6, (form, cut, shown)
            assert shown == plain_scrubbing.scrubbed(b"token=" + form[:cut], [secret.encode()])


def test_a_text_contains_a_secret_in_any_form_but_not_by_the_beginning_of_one():
    scrubber = Scrubber(["hunter2-and-more"])
    assert [scrubber.is_in(text) for text in (b"my-hunter2-and-more.txt", b"HUNTER2-AND-MORE")] == [True, True]
    assert [scrubber.is_in(text) for text in (b"hunter2-and", b"", b"report")] == [False, False, False]


def test_a_beginning_before_a_missing_part_is_masked_once_whether_the_end_follows_or_not():
    scrubber = Scrubber(["hunter2-and-more"])
    first = scrubber.feed(HeldBytes(), b"a hunter2")
    interrupted = scrubber.interrupt(first.held)
    assert (first.output, interrupted.output, interrupted.replacements) == (b"a ", b"***", 1)
    assert scrubber.interrupt(interrupted.held).output == b""
    assert b"".join(streamed(scrubber, [b"b"], interrupted.held)) == b"b"
    assert b"".join(streamed(scrubber, [b"-and-more b"], interrupted.held)) == b" b"
    assert b"".join(streamed(scrubber, [b"-and"], interrupted.held)) == b""
    little = scrubber.feed(HeldBytes(), b"a hunt").held
    assert scrubber.interrupt(little) == Scrubbed(b"", little, 0)


@settings(max_examples=EXAMPLES)
@given(data=st.data(), values=secrets, cuts=st.lists(st.integers(0, 400), max_size=4))
def test_no_split_with_missing_parts_shows_a_secret(data, values, cuts):
    """The parts that arrived are one text: a secret that they form is masked, whatever was missing between them."""
    text = data.draw(texts(values))
    scrubber, held, output = Scrubber(values), HeldBytes(), b""
    for part in parts_of(text, cuts):
        interrupted = scrubber.interrupt(held)
        fed = scrubber.feed(interrupted.held, part)
        output, held = output + interrupted.output + fed.output, fed.held
    output += scrubber.finish(held).output
    # Without all stars, because a text or a secret may have some beside a mask.
    assert len(output.replace(b"*", b"")) <= len(plain_scrubbing.scrubbed(text, values).replace(b"*", b""))


def test_the_example_of_the_contract():
    scrubber = Scrubber(["hunter2"])
    assert streamed(scrubber, [b"before hun", b"ter2 after\n"]) == [b"before ", b"*** after\n", b""]


def test_a_secret_that_is_the_beginning_of_another_one_is_masked_once():
    scrubber = Scrubber(["secret", "secret-and-more"])
    first = scrubber.feed(HeldBytes(), b"a secret")
    assert (first.output, first.held) == (b"a ", HeldBytes(b"secret", 0))
    assert scrubber.finish(first.held).output == b"***"
    second = scrubber.feed(first.held, b"-and-more")
    assert (second.output, second.replacements) == (b"***", 1)


def test_a_mask_that_grows_over_many_parts_is_returned_once():
    scrubber = Scrubber(["ababab"])
    assert b"".join(streamed(scrubber, [b"ab"] * 500 + [b"c"])) == b"***c"
    held = scrubber.feed(HeldBytes(), b"ab" * 500).held
    assert len(held.data) < 6
    assert held.masked == len(held.data)


def test_the_values_and_lines_precede_the_encoded_forms_at_the_limit():
    values = ["short secret", "long secret " * 100]
    small = Scrubber(values, max_form_bytes=2000)
    assert small.omitted > 0
    assert small.form_bytes <= 2000
    assert small.scrub("\n".join(values).encode()) == b"***\n***"
    assert small.scrub(base64.b64encode(b"short secret")) == b"***"
    assert Scrubber(values).omitted == 0


def test_values_that_are_no_text_are_masked():
    assert (
        Scrubber([b"\xff\xfe\xfd\xfc\xfb\xfa", "\udc80 lone surrogate"]).scrub(b"a\xff\xfe\xfd\xfc\xfb\xfab")
        == b"a***b"
    )


def test_the_cache_returns_the_same_scrubber_and_keeps_a_number_of_bytes():
    cache = ScrubberCache(max_form_bytes=3 * Scrubber(["secret-0"]).form_bytes)
    first = cache.get(["secret-0"])
    assert cache.get(("secret-0",)) is first
    for number in range(1, 4):
        cache.get([f"secret-{number}"])
    assert cache.get(["secret-0"]) is not first
    assert cache._size <= 3 * first.form_bytes + 100
