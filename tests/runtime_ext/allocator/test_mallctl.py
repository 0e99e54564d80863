# SPDX-License-Identifier: Apache-2.0
"""jemalloc's names: each has the type that the table says, and each misuse an error of its own."""

from __future__ import annotations

import pytest
from tests.runtime_ext.allocator.children import ask

from xruntime.allocator.mallctl_names import NAMES, VALUE_TYPES, find_name

CHANGING = {"arenas.create", "tcache.create"}
"""Names whose reading makes something."""


def concrete(pattern: str) -> str:
    """`pattern` with arena 0, size class 0, and a mutex that is in its part of the tree."""
    mutex = "base" if pattern.startswith("stats.arenas") else "ctl"
    return pattern.replace("<i>", "0").replace("<mutex>", mutex)


def test_rows_are_well_formed() -> None:
    for pattern, row in NAMES.items():
        assert row.kind in (*VALUE_TYPES, "nothing"), pattern
        assert set(row.access) <= set("rwc"), pattern
        assert ("c" in row.access) or row.kind != "nothing", pattern
        assert find_name(concrete(pattern)) is row


def test_every_readable_name_has_the_type_of_the_table(jemalloc: str) -> None:
    """jemalloc refuses a size that is not the type's, so each one read is of the right size."""
    names = {
        concrete(pattern): row.kind
        for pattern, row in NAMES.items()
        if "r" in row.access and pattern not in CHANGING
    }
    answer = ask(
        f"""
read, failed = {{}}, {{}}
for name in {list(names)!r}:
    try:
        read[name] = jemalloc.read(name)
    except errors.AllocatorError as error:
        failed[name] = [type(error).__name__, str(error)]
tell(read=read, failed=failed)
""",
        jemalloc,
    )
    kinds = {"bool": bool, "text": str}
    for name, value in answer["read"].items():
        assert type(value) is kinds.get(names[name], int), name
    # What is missing is missing from this build or version; it is not of another type.
    for name, (error, text) in answer["failed"].items():
        assert error in ("AllocatorUnsupportedError", "UnknownSettingError"), (name, text)
    built_out = {name for name, (error, _) in answer["failed"].items() if "Unsupp" in error}
    switches = {
        "opt.utrace": "config.utrace",
        "opt.xmalloc": "config.xmalloc",
        "opt.junk": "config.fill",
        "opt.zero": "config.fill",
    }
    for name, switch in switches.items():
        assert (name in built_out) == (answer["read"][switch] is False), name
    assert len(answer["read"]) >= 150


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("background_thread", [True, False]),
        ("max_background_threads", [2]),
        ("arenas.dirty_decay_ms", [-1, 0, 5000]),
        ("arenas.muzzy_decay_ms", [2500]),
        ("arena.0.dirty_decay_ms", [123]),
        ("arena.0.retain_grow_limit", [1 << 22]),
        ("thread.tcache.enabled", [False, True]),
        ("arena.0.dss", ["disabled", "secondary"]),
    ],
)
def test_what_is_written_is_read_back(name: str, values: list, jemalloc: str) -> None:
    answer = ask(
        f"""
written = [jemalloc.write({name!r}, value) for value in {values!r}]
tell(told=[setting.value for setting in written], read=jemalloc.read({name!r}),
     generic=allocator.current().read({name!r}))
""",
        jemalloc,
    )
    assert answer["read"] == answer["generic"] == values[-1]
    if name == "arena.0.retain_grow_limit":  # rounded down to a size class
        assert answer["told"][0] <= values[0]
    else:
        assert answer["told"] == values


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ('read("stats.alocated")', "UnknownSettingError", "did you mean stats.allocated?"),
        ('read("stats.arenas.900.pactive")', "UnknownSettingError", "below arenas.narenas"),
        ('read("no.such.thing", kind="size")', "UnknownSettingError", "knows no such name"),
        ('read("stats.allocated", kind="uint32")', "SettingTypeError", "another type"),
        ('read("stats.allocated", kind="double")', "SettingTypeError", "there are bool, unsigned"),
        ('read("arena.0.purge")', "ReadOnlySettingError", "it can be called"),
        ('call("stats.allocated")', "ReadOnlySettingError", "it can be read"),
        ('write("opt.narenas", 4)', "ReadOnlySettingError", "cannot be written"),
        ('write("opt.narenas", 4, kind="unsigned")', "ReadOnlySettingError", "jemalloc refuses"),
        ('write("background_thread", 1)', "SettingTypeError", "neither True nor False"),
        ('write("arenas.dirty_decay_ms", True)', "SettingTypeError", "no whole number"),
        ('write("arenas.dirty_decay_ms", 0.5)', "SettingTypeError", "no whole number"),
        ('write("arenas.dirty_decay_ms", -2)', "SettingValueError", "-1 (never)"),
        ('write("arenas.dirty_decay_ms", 1 << 70)', "SettingValueError", "allowed are -9223372036"),
        ('write("thread.arena", -1)', "SettingValueError", "allowed are 0 to 4294967295"),
        ('write("thread.arena", 4000)', "SettingValueError", "the arena must exist"),
        ('write("arena.0.dss", "sideways")', "SettingValueError", "disabled, primary, secondary"),
        (
            'write("max_background_threads", 5000)',
            "SettingValueError",
            "up to opt.max_background_threads",
        ),
        ('write("arena.0.dss", 3)', "SettingTypeError", "no text"),
        ('write("arena.0.dss", "a\\0b")', "SettingValueError", "null character"),
        ('call("arena.0.destroy")', "SettingValueError", "only an arena that was created"),
    ],
)
def test_each_misuse_has_its_error(call: str, error: str, words: str, jemalloc: str) -> None:
    name, text = ask(f"tell(refused=refusal(lambda: jemalloc.{call}))", jemalloc)["refused"]
    assert name == error, text
    assert words in text
    assert "\n" not in text


def test_out_of_arenas_is_out_of_memory(jemalloc: str) -> None:
    answer = ask(
        """
def create_all():
    while True:
        jemalloc.create_arena()

refused = refusal(create_all)
tell(refused=refused, count=len(jemalloc.arenas()), usable=bool(block(MIB)))
""",
        jemalloc,
    )
    assert answer["refused"][0] == "AllocatorMemoryError"
    assert "4,094 arenas" in answer["refused"][1]
    assert 4000 < answer["count"] <= 4095
    assert answer["usable"]


def test_cache_that_is_off_cannot_be_flushed(jemalloc: str) -> None:
    answer = ask(
        """
address = block(MIB)
free(address)
tell(refused=refusal(jemalloc.call, "thread.tcache.flush"), released=allocator.release())
""",
        jemalloc,
        MALLOC_CONF="tcache:false",
    )
    assert answer["refused"][0] == "SettingValueError"
    assert "thread.tcache.enabled is false" in answer["refused"][1]
    assert answer["released"] >= 0


def test_name_of_unknown_type_can_be_read_with_its_type(jemalloc: str) -> None:
    """opt.hpa_slab_max_alloc is not in the table: experimental names come and go."""
    assert find_name("opt.hpa_slab_max_alloc") is None
    answer = ask("""tell(read=jemalloc.read("opt.hpa_slab_max_alloc", kind="size"))""", jemalloc)
    assert answer["read"] > 0


def test_settings_are_those_of_malloc_conf(jemalloc: str) -> None:
    answer = ask(
        "tell(settings=heap.settings())",
        jemalloc,
        MALLOC_CONF="narenas:3,dirty_decay_ms:77,oversize_threshold:4194304",
    )
    told = {name: (value, unit, writable) for name, value, unit, writable, _ in answer["settings"]}
    assert told["opt.narenas"] == (3, None, False)
    assert told["opt.dirty_decay_ms"] == (77, "ms", False)
    assert told["arenas.dirty_decay_ms"] == (77, "ms", True)
    assert told["opt.oversize_threshold"] == (4 << 20, "bytes", False)
