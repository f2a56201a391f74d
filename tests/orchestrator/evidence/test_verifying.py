"""The verifier: what it accepts, the first fault that it names, and that no byte can be changed unseen (attack 104)."""

import io
import json
import subprocess
import sys
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.paths import BASE_DIR
from orchestrator.evidence import bundle_format as form
from orchestrator.evidence.dsse import sealed_envelope
from orchestrator.evidence.public_keys import key_id, public_key_pem
from orchestrator.evidence.verifying import BundleRefused, verify_bundle
from tests.orchestrator.evidence.archives import (
    KEY,
    OTHER,
    archive_of,
    bundle_of,
    contents_of,
    decompressed,
    history_of,
    lines_of,
    members_of,
    sample_files,
    sealed,
    sha256,
    text,
    unpacked,
)

FILES = sample_files()
MEMBERS = members_of(FILES)
BUNDLE = bundle_of(MEMBERS)
NAMES = [form.MANIFEST, form.SIGNATURE, *form.DATA_FILES]


def verified(bundle: bytes, key=KEY, **options):
    return verify_bundle(io.BytesIO(bundle), [key.public_key()], **options)


def fault(bundle: bytes, key=KEY) -> str:
    with pytest.raises(BundleRefused) as caught:
        verified(bundle, key)
    return str(caught.value)


def replaced(name: str, content: bytes):
    """The members with another content of one, under its correct size."""
    place = NAMES.index(name)
    return [*MEMBERS[:place], (form.tar_header(name, len(content)), content), *MEMBERS[place + 1 :]]


def same_size(name: str, old: bytes, new: bytes):
    content = dict(zip(NAMES, (content for _, content in MEMBERS), strict=True))[name]
    assert old in content
    assert len(old) == len(new)
    return bundle_of(replaced(name, content.replace(old, new, 1)))


def test_a_bundle_is_verified():
    entries = []
    found = verified(BUNDLE, on_entry=lambda name, entry: entries.append((name, entry)))
    assert (found.tenant, found.since, found.until) == ("acme", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z")
    assert found.key_id == key_id(KEY.public_key())
    assert found.sha256 == sha256(BUNDLE)
    assert found.lines == {form.JOBS: 3, form.HISTORY: 9, form.THROTTLES: 1, form.REPLAYS: 0}
    assert [name for name, _ in entries] == [form.JOBS] * 3 + [form.HISTORY] * 9 + [form.THROTTLES]
    assert entries[0][1]["payload"] == {"n": 0}


def test_common_tools_read_it():
    assert unpacked(BUNDLE) == MEMBERS
    assert list(contents_of(BUNDLE)) == NAMES


def test_one_of_several_keys_suffices():
    assert verify_bundle(io.BytesIO(BUNDLE), [OTHER.public_key(), KEY.public_key()]).key_id == key_id(KEY.public_key())


def test_without_a_key_it_is_refused():
    with pytest.raises(BundleRefused, match="No public key was named"):
        verify_bundle(io.BytesIO(BUNDLE), [])


def test_another_key_is_refused():
    assert "None of the named keys" in fault(BUNDLE, OTHER)


def test_a_stream_that_gives_single_bytes_is_read():
    class Drip(io.BytesIO):
        def read(self, _size=-1):
            return super().read(1)

    assert verify_bundle(Drip(BUNDLE), [KEY.public_key()]).sha256 == sha256(BUNDLE)


def test_large_files_are_read_in_blocks():
    files = sample_files(2000)
    assert verified(bundle_of(members_of(files))).lines[form.HISTORY] == 6000


# --- one change each --------------------------------------------------------------------------------------------------


def test_a_changed_job_row_is_named():
    assert fault(same_size(form.JOBS, b'{"n":1}', b'{"n":7}')) == (
        "jobs.jsonl, line 2: it was changed, moved, or follows a missing line."
    )


def test_a_changed_history_row_is_named():
    assert fault(same_size(form.HISTORY, b'"seq":3', b'"seq":4')).startswith("history.jsonl, line 3:")


@pytest.mark.parametrize("name", [form.JOBS, form.HISTORY])
def test_swapped_rows_are_named(name):
    first, second, *others = FILES[name].splitlines(keepends=True)
    assert fault(bundle_of(replaced(name, b"".join([second, first, *others])))).startswith(f"{name}, line 1:")


@pytest.mark.parametrize("name", [form.JOBS, form.HISTORY, form.THROTTLES])
def test_a_missing_last_row_is_named(name):
    *others, _ = FILES[name].splitlines(keepends=True)
    assert fault(bundle_of(replaced(name, b"".join(others)))).startswith(f"{name}: its header")


def test_a_row_whose_digests_were_computed_anew_is_refused_at_the_end_of_its_file():
    job, _ = history_of(f"rtj_{1:026}", text({"n": 8}), text({"exit_code": 0}))
    entries = [
        line[len(form.LINE_START) : -form.LINE_TAIL_BYTES].decode()
        for line in FILES[form.JOBS].splitlines(keepends=True)
    ]
    content = lines_of([entries[0], job, entries[2]])
    assert len(content) == len(FILES[form.JOBS])
    assert fault(bundle_of(replaced(form.JOBS, content))) == "jobs.jsonl: its SHA-256 is not the signed one."


def test_an_added_file_is_named():
    extra = (form.tar_header("notes.txt", 2), b"hi")
    assert "'notes.txt'" in fault(bundle_of([*MEMBERS, extra]))
    assert fault(bundle_of([MEMBERS[0], extra, *MEMBERS[1:]])) == (
        "signatures/manifest.dsse.json: the member 'notes.txt' is in its place."
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_removed_file_is_named(name):
    place = NAMES.index(name)
    assert fault(bundle_of(MEMBERS[:place] + MEMBERS[place + 1 :])).startswith(f"{name}: the member ")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_there_twice_is_named(name):
    place = NAMES.index(name)
    text_of_fault = fault(bundle_of([*MEMBERS[: place + 1], *MEMBERS[place:]]))
    assert f"'{name}'" in text_of_fault


@pytest.mark.parametrize(
    "changes",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"type": tarfile.LNKTYPE, "linkname": form.JOBS},
        {"type": tarfile.DIRTYPE},
        {"mode": 0o777},
        {"mtime": 1},
        {"uid": 1},
        {"uname": "root"},
    ],
    ids=["symbolic link", "hard link", "folder", "mode", "time", "owner", "name of the owner"],
)
def test_a_member_of_another_kind_is_named(changes):
    member = tarfile.TarInfo(form.JOBS)
    member.size, member.mode = len(FILES[form.JOBS]), 0o644
    for name, value in changes.items():
        setattr(member, name, value)
    members = list(MEMBERS)
    members[2] = (member.tobuf(tarfile.USTAR_FORMAT), FILES[form.JOBS])
    # A folder has a slash after its name.
    assert fault(bundle_of(members)).startswith(("jobs.jsonl: its header", "jobs.jsonl: the member 'jobs.jsonl/'"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "./jobs.jsonl", "x/" * 40 + "y"])
def test_a_path_outside_is_refused_and_printed_safely(name):
    members = list(MEMBERS)
    members[2] = (form.tar_header(name, 2), b"hi")
    assert fault(bundle_of(members)) == f"jobs.jsonl: the member '{name}' is in its place."


def test_a_name_with_control_characters_is_escaped():
    member = tarfile.TarInfo("jobs.jsonl")
    header = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
    header[0:4] = b"\x1b[2J"
    members = list(MEMBERS)
    members[2] = (bytes(header), b"")
    assert "\x1b" not in fault(bundle_of(members))


@pytest.mark.parametrize(
    "header", [b"\xff" * 512, b"x" * 512, b"jobs.jsonl" + b"\0" * 114 + b"-0000000001\0" + b"\0" * 376]
)
def test_a_damaged_header_is_refused(header):
    members = list(MEMBERS)
    for place in (0, 2):
        members[place] = (header, b"")
        fault(bundle_of(members))


def test_a_large_manifest_is_refused_before_it_is_read():
    size = form.MAX_SMALL_FILE_BYTES + 1
    assert "larger than" in fault(bundle_of([(form.tar_header(form.MANIFEST, size), b" " * size)]))


def test_a_changed_signature_is_refused():
    envelope = sealed_envelope(form.STATEMENT_TYPE, b"{}", KEY)
    assert "another manifest" in fault(bundle_of(replaced(form.SIGNATURE, form.canonical(envelope))))
    other = sealed_envelope("text/plain", form.canonical(form.statement_of({"files": []})), KEY)
    assert "payload type" in fault(bundle_of(replaced(form.SIGNATURE, form.canonical(other))))
    foreign = members_of(FILES, key=OTHER)
    assert "None of the named keys" in fault(bundle_of(foreign))
    renamed = form.canonical(sealed_envelope(form.STATEMENT_TYPE, b"{}", OTHER)).replace(
        key_id(OTHER.public_key()).encode(), key_id(KEY.public_key()).encode()
    )
    assert "signature is not valid" in fault(bundle_of(replaced(form.SIGNATURE, renamed)))


def test_what_the_signature_does_not_cover_is_fixed():
    envelope = sealed_envelope(form.STATEMENT_TYPE, form.canonical(form.statement_of(manifest())), KEY)
    for changed in (
        envelope | {"note": "x"},
        envelope | {"signatures": [envelope["signatures"][0] | {"note": "x"}]},
        envelope | {"signatures": [{"sig": envelope["signatures"][0]["sig"]}]},
    ):
        assert "canonical JSON" in fault(bundle_of(replaced(form.SIGNATURE, form.canonical(changed))))
    assert "canonical JSON" in fault(bundle_of(replaced(form.SIGNATURE, form.canonical(envelope) + b"\n")))
    assert "not JSON" in fault(bundle_of(replaced(form.SIGNATURE, b"{")))
    assert "not an envelope" in fault(bundle_of(replaced(form.SIGNATURE, b"[]")))


def manifest():
    return json.loads(MEMBERS[0][1])


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"tenant": None},
        {"files": {}},
        {"files": []},
        {"files": [*manifest()["files"], manifest()["files"][0]]},
        {"files": [file | {"size": -1} for file in manifest()["files"]]},
        {"files": [file | {"lines": True} for file in manifest()["files"]]},
        {"files": [file | {"sha256": "x"} for file in manifest()["files"]]},
        {"files": [file | {"name": "../x"} for file in manifest()["files"]]},
    ],
)
def test_a_signed_manifest_of_another_form_is_refused(changes):
    content = form.canonical(manifest() | changes)
    assert fault(bundle_of(replaced(form.MANIFEST, content))).startswith(("manifest.json:", "signatures/"))


# --- rows that contradict each other, signed by the server itself -----------------------------------------------------


def contradiction(**files: list[str]) -> str:
    content = FILES | {f"{name}.jsonl": lines_of(entries) for name, entries in files.items()}
    return fault(bundle_of(members_of(content)))


JOB, ROWS = history_of(f"rtj_{9:026}", text({"n": 9}), text({"exit_code": 0}))


def test_a_payload_that_was_changed_in_the_database_is_named():
    assert "payload of job" in contradiction(jobs=[JOB.replace('{"n":9}', '{"n":8}')], history=ROWS)


def test_a_result_that_was_changed_in_the_database_is_named():
    assert "result of job" in contradiction(jobs=[JOB.replace('"exit_code":0', '"exit_code":1')], history=ROWS)


def test_an_event_that_was_changed_in_the_database_is_named():
    assert "history.jsonl, line 2: event 2 of job" in contradiction(
        jobs=[JOB], history=[ROWS[0], ROWS[1].replace('"payload":{}', '"payload":{"x":1}'), ROWS[2]]
    )


def test_a_missing_event_is_named():
    assert "line 2: event 3 of job" in contradiction(jobs=[JOB], history=[ROWS[0], ROWS[2]])


def test_a_history_without_its_last_events_is_named():
    text_of_fault = contradiction(jobs=[JOB], history=ROWS[:2])
    assert text_of_fault.startswith(f"history.jsonl: the history of job rtj_{9:026}")


def test_a_history_that_was_made_anew_contradicts_its_job():
    _, anew = history_of(f"rtj_{9:026}", text({"n": 9}), text({"exit_code": 1}))
    assert "is not that of the next job" in contradiction(jobs=[JOB], history=anew)


def test_a_job_without_history_is_named():
    second, _ = history_of(f"rtj_{10:026}", text({}), text({}))
    assert "have no history" in contradiction(jobs=[JOB, second], history=ROWS)
    assert "is not that of the next job" in contradiction(jobs=[second, JOB], history=ROWS)


@pytest.mark.parametrize(
    "entry", ["", "[]", "{}", "1", '{"payload":{}}', '{"payload": {},"result":{},"job":{}}', "[" * 100_000]
)
def test_an_entry_of_another_form_is_refused(entry):
    assert "another form" in contradiction(jobs=[entry], history=ROWS)


# --- bytes ------------------------------------------------------------------------------------------------------------


@settings(max_examples=400)
@given(st.integers(0, len(BUNDLE) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(place, difference):
    changed = bytearray(BUNDLE)
    changed[place] ^= difference
    fault(bytes(changed))


ARCHIVE = decompressed(BUNDLE)


@settings(max_examples=400)
@given(st.integers(0, len(ARCHIVE) - 1), st.integers(1, 255))
def test_any_changed_byte_of_the_archive_is_refused_also_with_a_new_seal(place, difference):
    changed = bytearray(ARCHIVE)
    changed[place] ^= difference
    fault(sealed(bytes(changed)))


@given(st.integers(0, len(BUNDLE) - 1))
def test_a_bundle_that_ends_early_is_refused(length):
    fault(BUNDLE[:length])


@pytest.mark.parametrize("extra", [b"\0", b"x", BUNDLE, form.gzip_seal(bytes(32))])
def test_bytes_after_the_end_are_refused(extra):
    assert fault(BUNDLE + extra) == "Bytes follow the end of the bundle."


def test_bytes_after_the_archive_are_refused():
    assert fault(sealed(archive_of(MEMBERS) + bytes(512))) == "Bytes follow the end of the archive."


def test_other_files_are_no_bundles():
    assert "not an audit bundle" in fault(b"hello")
    assert "not an audit bundle" in fault(b"")


def test_a_decompression_bomb_is_refused_without_its_content():
    bomb = sealed(form.tar_header("zeros", 1 << 30) + bytes(1 << 24))
    assert "larger than" in fault(bomb)


def test_many_members_are_refused_at_the_first():
    read = []

    class Counting(io.BytesIO):
        def read(self, size=-1):
            block = super().read(size)
            read.append(len(block))
            return block

    extra = form.tar_header("x", 0) * 1000
    whole = archive_of(MEMBERS)[: -len(form.END_OF_ARCHIVE)]
    bundle = b"".join(form.gzip_blocks([whole, *[extra] * 200]))
    with pytest.raises(BundleRefused, match="'x'"):
        verify_bundle(Counting(bundle), [KEY.public_key()])
    assert sum(read) < len(BUNDLE) + 2 * (1 << 16)


def test_it_needs_no_django_and_writes_nothing(tmp_path):
    (tmp_path / "b.tar.gz").write_bytes(BUNDLE)
    (tmp_path / "k.pem").write_text(public_key_pem(KEY.public_key()))
    script = """
import sys
from orchestrator.evidence.public_keys import read_public_key
from orchestrator.evidence.verifying import verify_bundle
key = read_public_key(open("k.pem").read())
print(verify_bundle(open("b.tar.gz", "rb"), [key]).sha256, "django" in sys.modules)
"""
    environment = {"PYTHONPATH": str(BASE_DIR), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", script], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.stdout.split() == [sha256(BUNDLE), "False"], ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "k.pem"]
