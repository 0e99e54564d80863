# SPDX-License-Identifier: Apache-2.0
"""Bundles arrive as they were sent, add whole files only, and cannot do anything else."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.cache.compiling import ONE_COMPILATION
from tests.launcher.cache.entries import (
    CONTENT,
    HARDWARE,
    PACKAGES,
    SHIPPED,
    WITH_TESTS,
    elf,
    files,
    fill,
    numba_index,
    place,
    put,
)
from tests.tiers import quick_first

from xlaunch.cache import bundle as bundle_module
from xlaunch.cache.bundle import export
from xlaunch.cache.bundle_import import ImportResult, import_bundle
from xlaunch.cache.check import verify
from xlaunch.cache.contents import read_imported
from xlaunch.cache.prune import prune
from xlaunch.cache.staging import leftovers, staging_directory
from xlaunch.cache.store import begin_use, directory_of, key_of
from xlaunch.cache.table import BY_NAME
from xlaunch.errors import UsageError

NEW = sum(SHIPPED.values())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Where the bundle comes from."""
    fill(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def bundle(base: Path, tmp_path: Path) -> Path:
    return pack(base, tmp_path / "caches.tar")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the bundle goes to; it does not exist yet."""
    return tmp_path / "there" / "compiled"


def pack(base: Path, path: Path, *caches: str, **options: Any) -> Path:
    export(str(base), [place(base, name) for name in caches or CONTENT], str(path), **options)
    return path


def add(target: Path, bundle: Path, **options: Any) -> ImportResult:
    return import_bundle(str(target), str(bundle), HARDWARE, PACKAGES, **options)


def refusal(target: Path, bundle: Path, **options: Any) -> str:
    """Why a bundle is refused, in one line; nothing of it may be in the target."""
    before = files(target) if target.exists() else {}
    with pytest.raises(UsageError) as caught:
        add(target, bundle, **options)
    assert (files(target) if target.exists() else {}) == before
    assert not target.exists() or leftovers(str(target)) == []
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("ending", "start"), [(".tar", b"man"), (".tar.gz", b"\x1f\x8b\x08"), (".tgz", b"\x1f\x8b\x08")]
)
def test_round_trip(base: Path, target: Path, tmp_path: Path, ending: str, start: bytes):
    path = pack(base, tmp_path / f"caches{ending}")
    assert path.read_bytes().startswith(start)
    result = add(target, path)
    assert (result.added, result.kept) == (NEW, 0)
    assert {it.cache for it in result.caches} == {*CONTENT}
    there, here = files(target), files(base)
    group = next(name for name in here if "__grp__" in name)
    children = json.loads(there[group])["child_paths"]
    # Triton looks for the files of a kernel by the paths in its list.
    assert [Path(it).read_bytes() for it in children.values()] == [b'{"name": "k"}']
    assert there == here | {group: there[group]}
    assert result.size_bytes == sum([len(it) for it in there.values()])
    assert verify(str(target)) == []
    record = {name: read_imported(place(target, name)) for name in CONTENT}
    assert {name: len(it) for name, it in record.items()} == SHIPPED
    again = add(target, path)
    assert (again.added, again.kept, again.size_bytes) == (0, NEW, 0)
    assert files(target) == there
    assert {name: read_imported(place(target, name)) for name in CONTENT} == record


def test_other_programs_can_list_a_bundle(bundle: Path):
    with tarfile.open(bundle) as tar:
        assert tar.getnames()[0] == "manifest.json"
    manifest, members = members_of(bundle)
    assert len(members) == NEW
    assert manifest["schema_version"] == 1
    assert {it["cache"]: len(it["files"]) for it in manifest["caches"]} == SHIPPED
    assert manifest["caches"][0]["parts"]["torch"] == "2.13.0"


def test_modes_times_and_key_after_import(bundle: Path, target: Path):
    add(target, bundle)
    directory = place(target, "inductor")
    home = Path(directory.path)
    modes = {"24/c24.so": 0o700, "24/c24.cpp": 0o600, "24": 0o700, "": 0o700}
    assert {name: (home / name).stat().st_mode & 0o777 for name in modes} == modes
    status = (home / "24/c24.cpp").stat()
    assert (status.st_mtime_ns, status.st_nlink) == (10**18, 1)
    assert directory.parts() == dict(key_of(BY_NAME["inductor"], HARDWARE, PACKAGES).parts)


@pytest.mark.parametrize(
    ("cache", "name", "content", "kept"),
    [
        ("inductor", "24/c24.so", elf(b"mine"), 1),
        # By this index 1.nbc is another function than by the index in the bundle.
        ("numba", "m_1/f-1.py311.nbi", numba_index("float64"), 2),
        # Half of an import: the index is added.
        ("numba", "m_1/f-1.py311.1.nbc", CONTENT["numba"]["m_1/f-1.py311.1.nbc"], 1),
        # This machine's library never gets the description of another one's, nor the other way round.
        ("optimized", "0123abcd/model.so", elf(b"mine"), 2),
        ("optimized", "0123abcd/description.json", b"{}", 2),
        # Half of an import: the library is added. A lock says nothing about what was compiled.
        ("optimized", "0123abcd/description.json", b'{"shapes": [[1, 3]]}', 1),
        ("optimized", "0123abcd.lock", b"", 0),
    ],
)
def test_existing_entries_win(
    bundle: Path, target: Path, cache: str, name: str, content: bytes, kept: int
):
    mine = put(Path(place(target, cache).path, name), content)
    result = add(target, bundle)
    assert (result.added, result.kept) == (NEW - kept, kept)
    assert mine.read_bytes() == content
    assert name not in read_imported(place(target, cache))
    assert verify(str(target)) == []


@pytest.mark.parametrize(
    ("cache", "there", "added"),
    [
        ("cuda", "index", set()),
        ("cuda", "7/7/other", set()),
        ("torch_extensions", "mine/mine.so", {"yours/.ninja_log"}),
        ("torch_extensions", "other/other.so", {"mine/.ninja_log", "yours/.ninja_log"}),
        ("jax", "jit_f-cache", {"index", "0/1/f"}),
    ],
)
def test_files_that_make_sense_only_together(
    base: Path, target: Path, tmp_path: Path, cache: str, there: str, added: set[str]
):
    extensions = ["mine/.ninja_log", "yours/.ninja_log"]
    names = extensions if cache == "torch_extensions" else ["index", "0/1/f"]
    directory = begin_use(str(base), key_of(BY_NAME[cache], HARDWARE, PACKAGES))
    for name in names:
        put(Path(directory.path, name), b"of the bundle")
    home = Path(place(target, cache).path)
    put(home / there, b"mine")
    assert add(target, pack(base, tmp_path / "x.tar", cache)).added == len(added)
    assert {it for it in names if (home / it).exists()} - {there} == added


def test_long_and_unusual_names(base: Path, target: Path, tmp_path: Path):
    home = Path(place(base, "numba").path)
    names = ["a" * 250, "d" * 120, "ü \udcff.nbx"]
    for name in names:
        put(home / name / ("e" * 120) / "f", b"x")
    add(target, pack(base, tmp_path / "caches.tar"))
    assert {*names} <= {*os.listdir(place(target, "numba").path)}


# What export reads


def test_what_is_left_out_of_a_bundle_and_how_much_are_weights(base: Path, tmp_path: Path):
    home = Path(place(base, "inductor").path)
    damaged = put(home / "24/c24.so", elf()[:-1])
    ends_a_line = put(home / "24/a\nb.cpp", b"x")
    os.mkfifo(home / "24/pipe")
    inductor, optimized = (
        export(str(base), [place(base, name)], str(tmp_path / "x.tar"))
        for name in ("inductor", "optimized")
    )
    assert set(inductor.left_out) == {str(damaged), str(ends_a_line)}
    assert (inductor.files, inductor.weights_bytes) == (SHIPPED["inductor"] - 1, 0)
    content = CONTENT["optimized"]
    shipped = [content[f"0123abcd/{name}"] for name in ("model.so", "description.json")]
    assert optimized.weights_bytes == sum(map(len, shipped))


REPLACE = """
import os, sys
path, new = sys.argv[1], sys.argv[1] + ".new"
data = open(path, "rb").read()
print(flush=True)
while True:
    open(new, "wb").write(data); os.replace(new, path); os.unlink(path)
"""


def test_files_that_are_replaced_while_they_are_read(base: Path, tmp_path: Path):
    path = put(Path(place(base, "inductor").path, "aa/busy.so"), elf(b"0"))
    command = [sys.executable, "-c", REPLACE, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            for number in range(8):
                pack(base, tmp_path / "x.tar", "inductor")
                add(tmp_path / f"to{number}", tmp_path / "x.tar")
        finally:
            writer.kill()


def test_a_refused_export_keeps_the_old_file(base: Path, bundle: Path):
    before, there = bundle.read_bytes(), {*bundle.parent.iterdir()}
    for path, why in (
        ("/dev/null", "not a regular file"),
        ("/proc/absent/x.tar", "/proc/absent does not exist"),
    ):
        with pytest.raises(UsageError, match=why):
            pack(base, Path(path))
    link = Path(place(base, "inductor").path, "24/c25.so")
    link.symlink_to("c24.so")
    with pytest.raises(UsageError, match=f"{link} is a link"):
        pack(base, bundle)
    link.unlink()
    Path(place(base, "numba").record).unlink()
    with pytest.raises(UsageError, match="missing or damaged"):
        pack(base, bundle)
    assert (bundle.read_bytes(), {*bundle.parent.iterdir()}) == (before, there)


def test_an_export_keeps_the_mode_of_the_file_that_it_replaces(base: Path, bundle: Path):
    bundle.write_bytes(b"")
    bundle.chmod(0o600)
    pack(base, bundle)
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert tarfile.is_tarfile(bundle)


# What import refuses


Members = list[tuple[tarfile.TarInfo, bytes]]


def members_of(path: Path) -> tuple[dict[str, Any], Members]:
    """The manifest of a bundle, and its other members."""
    with tarfile.open(path) as tar:
        found = [(it, tar.extractfile(it).read()) for it in tar]  # type: ignore[union-attr]
    return json.loads(found[0][1]), found[1:]


def write(path: Path, manifest: dict[str, Any] | None, members: Members) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        if manifest is not None:
            data = json.dumps(manifest).encode()
            members = [(member("manifest.json", data), data), *members]
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, "/etc/passwd"
    return info


Change = Callable[[dict[str, Any], Members], object]


def rename(name: str) -> Change:
    """Give the first file another path, in the manifest and in the tar."""

    def change(manifest: dict[str, Any], members: Members) -> None:
        cache = manifest["caches"][0]
        cache["files"][0]["path"] = name
        members[0][0].name = f"{cache['cache']}/{cache['key']}/{name}"

    return change


def set_kind(kind: bytes) -> Change:
    return lambda _, members: members.__setitem__(0, (member(members[0][0].name, b"", kind), b""))


def set_manifest(**values: object) -> Change:
    return lambda manifest, _: manifest.update(values)


def set_cache(field: str, value: object) -> Change:
    return lambda manifest, _: manifest["caches"][0].update({field: value})


def set_file(field: str, value: object) -> Change:
    return lambda manifest, _: manifest["caches"][0]["files"][0].update({field: value})


def put_first(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE) -> Change:
    return lambda _, members: members.insert(0, (member(name, data, kind), data))


def twice(manifest: dict[str, Any], members: Members) -> None:
    manifest["caches"][0]["files"].insert(0, manifest["caches"][0]["files"][0])
    members.insert(0, members[0])


def clash(manifest: dict[str, Any], members: Members) -> None:
    first, second = manifest["caches"][0]["files"][:2]
    second["path"] = first["path"] + "/below"


def cache_twice(manifest: dict[str, Any], members: Members) -> None:
    manifest["caches"].append(manifest["caches"][0] | {"key": "other", "files": []})


def changed(manifest: dict[str, Any], members: Members) -> None:
    info, data = members[0]
    members[0] = (info, data[:-1] + b"?")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        *[
            (set_kind(getattr(tarfile, kind)), "which is not a regular file")
            for kind in ("SYMTYPE", "LNKTYPE", "DIRTYPE", "FIFOTYPE", "CHRTYPE", "GNUTYPE_SPARSE")
        ],
        (put_first("/etc/evil", kind=tarfile.SYMTYPE), "'/etc/evil', which is not a regular file"),
        (put_first("../../evil", b"x"), "contains '../../evil' where"),
        (put_first("x" * 100_000, b"x"), "@LongLink"),
        *[
            (rename(name), "not a path that a bundle")
            for name in ("/etc/evil", "../../evil", "a/../../evil", "a//b", "./a", "", "x" * 256)
        ],
        (rename("x/" * 600 + "x"), "@LongLink"),
        (set_file("path", "x/" * 600 + "x"), "not a path that a bundle"),
        *[
            (set_file("path", f"a{char}b"), "not a path that a bundle")
            for char in "\0\n\r\x1b\x7f\x85\u2028"
        ],
        (set_file("path", "\ud800"), "surrogates"),
        (twice, "a file twice"),
        (clash, "a file as a directory"),
        (cache_twice, "describes a cache or a file twice"),
        (lambda _, members: members.pop(), "contains None where 'optimized/"),
        (lambda _, members: members.insert(0, members.pop()), "where 'inductor/"),
        (lambda _, members: members.append(members[0]), "goes on after the last file"),
        (lambda manifest, _: manifest["caches"][0]["files"].pop(), "where 'numba/"),
        (changed, "(SHA-256)"),
        (set_file("size_bytes", 1), "bytes of 'inductor/"),
        *[(set_file("size_bytes", it), "is not described as a file") for it in (-1, True, 1.5)],
        (set_file("sha256", "x"), "is not described as a file"),
        (set_file("modified_ns", None), "is not described as a file"),
        (set_file("mode", 4755), "unexpected keyword"),
        (set_file("\x1b[2J\n", 1), "'?[2J?'"),
        (set_file("size_bytes", 1 << 60), "has room for"),
        (rename("locks/x.lock"), "'locks/x.lock' is a lock"),
        (rename(".partial-7-x/model.so"), "'.partial-7-x/model.so' is a lock or unfinished"),
        *[
            (set_cache(*it), "is not a cache that this xlaunch knows")
            for it in (("cache", "../x"), ("cache", "ccache"), ("key", "../x"), ("key", ".."))
        ],
        (set_cache("files", None), "not valid"),
        (set_cache("parts", {"torch": 2}), "is not text"),
        (lambda manifest, _: manifest.pop("caches"), "not valid: KeyError 'caches'"),
        (set_manifest(schema_version=2), "schema version 2 is not 1"),
    ],
)
def test_hostile_bundles(bundle: Path, target: Path, change: Change, expected: str):
    manifest, members = members_of(bundle)
    change(manifest, members)
    assert expected in refusal(target, write(bundle, manifest, members))
    assert not Path("/etc/evil").exists()


def test_a_small_file_that_becomes_gigabytes_of_lists_is_refused(
    golden: Golden, target: Path, tmp_path: Path
):
    path = tmp_path / "x.tar.gz"
    data = b"[" + b"[]," * (bundle_module.MAX_MANIFEST_BYTES // 3) + b"[]]"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        tar.addfile(member("manifest.json", data), io.BytesIO(data))
    golden(refusal(target, path))


def extended_header(bundle: Path) -> None:
    """Add a pax header, which may be as large as a file; programs read it into memory."""
    manifest, members = members_of(bundle)
    members[0][0].pax_headers = {"comment": "x" * 10_000_000}
    data = json.dumps(manifest).encode()
    with tarfile.open(bundle, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member("manifest.json", data), io.BytesIO(data))
        tar.addfile(members[0][0], io.BytesIO(members[0][1]))


def names_of_names(bundle: Path) -> None:
    """Begin with many headers for each of which tarfile calls itself once more."""
    name = member("x", b"y" * 9, tarfile.GNUTYPE_LONGNAME)
    data = (name.tobuf(tarfile.GNU_FORMAT) + b"y" * 9 + bytes(503)) * 5000
    bundle.write_bytes(data + bundle.read_bytes())


def more_behind_it(rest: bytes) -> Callable[[Path], object]:
    return lambda bundle: bundle.write_bytes(bundle.read_bytes() + rest)


def more_than_it_says(bundle: Path) -> None:
    """Compress a first file of 8 MiB, which the manifest does not announce."""
    manifest, members = members_of(bundle)
    members[0][0].size = 8 << 20
    data = json.dumps(manifest).encode()
    head = member("manifest.json", data).tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)
    head += members[0][0].tobuf(tarfile.GNU_FORMAT)
    bundle.write_bytes(gzip.compress(head + bytes(8 << 20)))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (extended_header, "which is not a regular file"),
        (names_of_names, "is not a bundle of xlaunch, or is damaged"),
        (more_than_it_says, "bytes of 'inductor/"),
        (more_behind_it(b"x"), "goes on after"),
        (more_behind_it(bytes(2 * tarfile.RECORDSIZE)), "goes on after"),
        (more_behind_it(b"manifest.json" + bytes(499)), "goes on after"),
    ],
)
def test_damaged_streams(bundle: Path, target: Path, damage: Callable[[Path], Any], expected: str):
    damage(bundle)
    assert expected in refusal(target, bundle)


@pytest.mark.parametrize("ending", [".tar", ".tgz"])
def test_bundle_that_ends_early_or_has_a_wrong_byte(
    base: Path, target: Path, tmp_path: Path, ending: str
):
    path = pack(base, tmp_path / f"x{ending}")
    data = path.read_bytes()
    # Behind the last file a tar has at least 1024 bytes of padding, which are not needed.
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    end = last.offset_data + last.size if ending == ".tar" else len(data) - 7
    for length in (0, 1, 100, 600, len(data) // 2, end - 1):
        path.write_bytes(data[:length])
        refusal(target, path)
    for position in range(len(data) // 2, len(data) // 2 + 3):
        path.write_bytes(data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :])
        try:
            add(target, path)
        except UsageError:
            assert not list(target.glob("inductor/*/24"))
        else:  # the byte was in the padding or in a time stamp of the tar
            assert verify(str(target)) == []
            shutil.rmtree(target)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\n", bytes(10240), b"\x1f\x8b", b"\xfd7zXZ\0", b"import torch\n" * 100, None],
)
def test_what_is_no_bundle(target: Path, tmp_path: Path, content: bytes | None):
    path = tmp_path / "x.py"
    if content is not None:
        path.write_bytes(content)
    text = refusal(target, path)
    assert str(path) in text
    assert ("No such file" in text) == (content is None)
    assert ("is not a bundle of xlaunch" in text) == (content is not None)


# Where import writes


@pytest.mark.parametrize("where", ["24", "24/c24.so", "", "..", "../.."])
def test_links_in_the_target_are_refused(bundle: Path, target: Path, tmp_path: Path, where: str):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home = Path(place(target, "inductor").path)
    link = Path(os.path.normpath(home / where))
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(UsageError, match="link"):
        add(target, bundle)
    assert list(elsewhere.iterdir()) == []


def test_link_that_appears_while_files_are_put_in_place(
    bundle: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    make = os.mkdir

    def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
        if path == "24":
            os.symlink(elsewhere, path, **options)
        else:
            make(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(UsageError, match="a link"):
        add(target, bundle)
    assert list(elsewhere.iterdir()) == []


def test_target_that_is_not_private(golden: Golden, bundle: Path, target: Path):
    target.mkdir(parents=True)
    target.chmod(0o777)
    golden(refusal(target, bundle))
    assert target.stat().st_mode & 0o777 == 0o777


# What a bundle was made for


def test_another_machine_needs_force(bundle: Path, target: Path):
    other = HARDWARE._replace(instruction_set=("avx2", "avx512f"))
    with pytest.raises(UsageError, match=r"only the first has avx512f; .*second has fma.*--force"):
        import_bundle(str(target), str(bundle), other, PACKAGES)
    assert not target.exists()
    assert import_bundle(str(target), str(bundle), other, PACKAGES, force=True).added == NEW
    key = key_of(BY_NAME["inductor"], other, PACKAGES)
    assert Path(directory_of(str(target), key).path, "24/c24.so").exists()
    assert verify(str(target)) == []


def test_a_bundle_larger_than_the_caches_may_be_is_refused(bundle: Path, target: Path):
    told = refusal(target, bundle, max_bytes=1000)
    assert "caches are kept within 1000; XLAUNCH_CACHE_MAX_SIZE allows more" in told


@pytest.mark.parametrize(
    ("here", "there", "accepted"),
    [
        ("glibc 2.36", "glibc 2.36", True),
        ("glibc 2.36", "glibc 2.9", True),
        ("glibc 2.36", "glibc 2.37", False),
        ("glibc 2.36", "not glibc", False),
        ("not glibc", "glibc 2.9", False),
    ],
)
def test_c_libraries(bundle: Path, target: Path, here: str, there: str, accepted: bool):
    """Libraries run with the C library that they were linked against, or a newer one."""
    manifest, members = members_of(bundle)
    manifest["caches"][0]["parts"]["c_library"] = there
    for it in manifest["caches"][1:]:
        it["parts"].pop("c_library", None)
        it["parts"] |= {"c_library": here} if it["cache"] != "numba" else {}
    write(bundle, manifest, members)
    machine = HARDWARE._replace(c_library=here)
    if not accepted:
        with pytest.raises(UsageError, match=f"inductor: c_library: {here}; {there}"):
            import_bundle(str(target), str(bundle), machine, PACKAGES)
    forced = not accepted
    assert import_bundle(str(target), str(bundle), machine, PACKAGES, force=forced).added == NEW


# Signatures


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory, needs: Callable[[object, str], None]) -> Path:
    """A directory with the keys `ours` and `theirs`, and `locked` with a passphrase."""
    needs(shutil.which("ssh-keygen"), "ssh-keygen (Debian: openssh-client)")
    directory = tmp_path_factory.mktemp("keys")
    for name, passphrase in ("ours", ""), ("theirs", ""), ("locked", "secret"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", directory / name]
        subprocess.run(command, check=True)
    return directory


def allow(keys: Path, path: Path, principals: str, options: str = "") -> str:
    """Write a file of allowed signers with the key `ours`."""
    public = (keys / "ours.pub").read_text().split()
    path.write_text(f"# who may sign\n{principals} {options} {public[0]} {public[1]}\n")
    return str(path)


def test_signed_bundle(base: Path, target: Path, tmp_path: Path, keys: Path):
    path = pack(base, tmp_path / "x.tar.gz", sign=str(keys / "ours"))
    with tarfile.open(path) as tar:
        assert tar.getnames()[:2] == ["manifest.json", "manifest.json.sig"]
    for principals, signer in (
        ("ops@example.com", "ops@example.com"),
        ("*@example.com", "*@example.com"),
        ("!eve@example.com,ops@example.com,dev@example.com", "ops@example.com"),
    ):
        allowed = allow(keys, tmp_path / "allowed", principals)
        assert add(target, path, allowed_signers=allowed).signer == signer


@pytest.mark.parametrize(
    ("key", "allowed", "expected"),
    [
        (None, "", "is not signed"),
        ("theirs", "", "its key is not in that file"),
        ("ours", 'namespaces="file"', "not signed by one of them"),
        ("ours", 'valid-before="20200101"', "not signed by one of them"),
        ("ours", 'valid-after="29990101"', "not signed by one of them"),
        ("ours", None, "No such file"),
        ("ours", 0o666, "others could add a key to it: every user may write"),
    ],
)
def test_signature_that_is_not_accepted(
    base: Path, target: Path, tmp_path: Path, keys: Path, key: str | None, allowed, expected: str
):
    """`allowed`: options of the only allowed key, or the mode of its file; None: there is no file."""
    path = pack(base, tmp_path / "x.tar", **({} if key is None else {"sign": str(keys / key)}))
    signers = tmp_path / "allowed"
    if allowed is not None:
        allow(keys, signers, "ops@example.com", allowed if isinstance(allowed, str) else "")
    if isinstance(allowed, int):
        signers.chmod(allowed)
    text = refusal(target, path, allowed_signers=str(signers))
    assert expected in text
    assert str(signers) in text
    assert add(target, path).signer is None  # unless it is asked for


def test_signed_bundle_that_was_changed(base: Path, target: Path, tmp_path: Path, keys: Path):
    path = pack(base, tmp_path / "x.tar", sign=str(keys / "ours"))
    allowed = allow(keys, tmp_path / "allowed", "ops@example.com")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"int f();", b"int g();"))
    assert "SHA-256" in refusal(target, path, allowed_signers=allowed)
    path.write_bytes(data)
    manifest, members = members_of(path)
    manifest["created"] += " "
    text = refusal(target, write(path, manifest, members), allowed_signers=allowed)
    assert "not signed by one of them" in text


@pytest.mark.parametrize("name", ["absent", "locked", "junk"])
def test_keys_that_cannot_sign(base: Path, tmp_path: Path, keys: Path, name: str):
    if name == "junk":
        put(keys / "junk", b"no key\n")
    with pytest.raises(UsageError, match="--sign") as caught:
        pack(base, tmp_path / "x.tar", sign=str(keys / name))
    assert "\n" not in str(caught.value)
    assert "Enter passphrase" not in str(caught.value)
    assert not (tmp_path / "x.tar").exists()


def test_without_ssh_keygen(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="openssh-client"):
        pack(base, tmp_path / "x.tar", sign="key")


# Kills

COUNTED = """
import os, signal, sys
from tests.launcher.cache.entries import CONTENT, HARDWARE, PACKAGES, place
from xlaunch.cache.bundle import export
from xlaunch.cache.bundle_import import import_bundle
from xlaunch.cache.prune import clear
from xlaunch.cache.store import stored
command, base, bundle, ending = sys.argv[1:5]
left = int(sys.argv[5])
WATCHED = ("open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "os.utime")
def count(event, arguments):
    global left
    if event in WATCHED and not str(arguments[0]).endswith((".py", ".pyc", "__pycache__")):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.Signals[ending])
sys.addaudithook(count)
if command == "import":
    import_bundle(base, bundle, HARDWARE, PACKAGES)
elif command == "clear":
    clear(base, stored(base), dry_run=False)
else:
    export(base, [place(base, name) for name in CONTENT], bundle, force=True)
print(left, flush=True)
"""


def run_until(
    step: int, command: str, base: Path, bundle: Path, ending: str = "SIGKILL"
) -> int | None:
    """Import, export or clear in another process that gets a signal before the given step; the steps
    that were left, None if the signal has ended it.
    """
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, command, str(base), str(bundle), ending, str(step)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        env=WITH_TESTS,
    )
    if done.returncode == 0:
        return int(done.stdout)
    assert done.returncode == -signal.Signals[ending]
    return None


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many files an import opens, makes, links and removes."""
    path = tmp_path_factory.mktemp("steps")
    fill(path / "here")
    left = run_until(1_000_000, "import", path / "there", pack(path / "here", path / "x.tar"))
    assert left is not None
    assert 1_000_000 - left > 4 * NEW
    return 1_000_000 - left


@pytest.mark.parametrize(
    "part", [0, 1, *[pytest.param(part, marks=pytest.mark.full) for part in range(2, 10)]]
)
def test_kill_at_any_step(bundle: Path, base: Path, tmp_path: Path, steps: int, part: int):
    wanted = files(base)
    chosen = range(1 + part, steps, 10)
    for step in chosen if part >= 2 else chosen[:: 1 + len(chosen) // 5]:
        target = tmp_path / f"killed{step}"
        assert run_until(step, "import", target, bundle) is None
        if target.exists():
            problems = verify(str(target), fix=True)
            assert {it.check.value for it in problems} <= {"leftover"}
            assert {it.fixed for it in problems} <= {True}
            assert verify(str(target)) == []
            found = files(target)
            assert found.keys() <= wanted.keys()
            for name, data in found.items():
                assert data == wanted[name] or "__grp__" in name
        result = add(target, bundle)
        assert result.added + result.kept == NEW
        assert files(target).keys() == wanted.keys()
        assert verify(str(target)) == []


@pytest.mark.parametrize("ending", quick_first(["SIGTERM", "SIGINT"]))
def test_signal_at_any_step_leaves_nothing_behind(
    base: Path, bundle: Path, tmp_path: Path, steps: int, ending: str
):
    written = tmp_path / "out" / "old.tar"
    put(written, b"old")
    for step in range(1, steps, max(1, steps // 8)):
        target = tmp_path / f"ended{step}"
        assert run_until(step, "import", target, bundle, ending) is None
        if target.exists():
            assert not [it for it in target.iterdir() if it.name.startswith(".")]
            assert len(files(target)) in (0, NEW)
            assert verify(str(target)) == []
        run_until(step, "export", base, written, ending)
        assert os.listdir(written.parent) == ["old.tar"]
        if written.read_bytes() != b"old":  # the signal came when all was done
            assert add(tmp_path / f"whole{step}", written).added == NEW
            written.write_bytes(b"old")
        cleared = tmp_path / f"cleared{step}"
        fill(cleared)
        run_until(step, "clear", cleared, bundle, ending)
        assert not [it for it in cleared.glob("*/*") if it.name.startswith(".")]


def test_staging_of_a_running_import_is_left_alone(bundle: Path, target: Path):
    target.mkdir(parents=True, mode=0o700)
    with staging_directory(str(target)) as (path, _):
        assert leftovers(str(target)) == []
        prune(str(target))
        assert os.path.isdir(path)
        assert verify(str(target), fix=True) == []
    assert not os.path.exists(path)


def test_two_imports_at_once(bundle: Path, base: Path, target: Path):
    command = [sys.executable, "-c", COUNTED, "import", str(target), str(bundle), "SIGKILL", "0"]
    running = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, env=WITH_TESTS) for _ in range(3)
    ]
    assert [it.wait() for it in running] == [0, 0, 0]
    assert files(target).keys() == files(base).keys()
    assert verify(str(target)) == []
    assert len(read_imported(place(target, "inductor"))) == SHIPPED["inductor"]


# Real programs

TORCH = """
import torch
from torch._dynamo.utils import counters
torch.set_num_threads(1)
def f(x):
    return (x.sin() + x.cos()).relu().sum()
print(float(torch.compile(f)(torch.ones(1000))))
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""
NUMBA = """
import numba
@numba.njit(cache=True)
def f(x): return x + 1
f(1), f(1.5)
print(f(2), *(sum(it.values()) for it in (f.stats.cache_hits, f.stats.cache_misses)))
"""


@pytest.mark.parametrize(
    ("package", "cache", "program", "entries"),
    [
        pytest.param("torch", "inductor", TORCH, 1, marks=pytest.mark.long),
        pytest.param("numba", "numba", NUMBA, 2, marks=pytest.mark.full),
    ],
)
def test_nothing_is_compiled_after_import(
    tmp_path: Path, target: Path, needs, package: str, cache: str, program: str, entries: int
):
    needs(find_spec(package), package)
    [directory] = fill(tmp_path / "here", cache)
    shutil.rmtree(directory.path)
    os.mkdir(directory.path, 0o700)
    (tmp_path / "program.py").write_text(program)

    def run(path: str) -> list[str]:
        """The result, and how many entries were found in the cache and not found."""
        environment = {**os.environ, **ONE_COMPILATION, BY_NAME[cache].variable: path}
        command = [sys.executable, str(tmp_path / "program.py")]
        return subprocess.check_output(command, env=environment, text=True).split()

    first = run(directory.path)
    assert first[1:] == ["0", str(entries)]
    assert verify(str(tmp_path / "here")) == []
    add(target, pack(tmp_path / "here", tmp_path / "x.tar.gz", cache))
    before = {path.name for path in Path(directory.path).rglob("*.so")}
    shutil.rmtree(tmp_path / "here")
    assert run(place(target, cache).path) == [first[0], str(entries), "0"]
    assert {path.name for path in target.rglob("*.so")} == before
    assert verify(str(target)) == []
