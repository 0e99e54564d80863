# SPDX-License-Identifier: Apache-2.0
"""jemalloc's mallctl: values of each type go in and out, and each misuse has an error of its own."""

from __future__ import annotations

from tests.runtime_ext.allocator.children import ask, assert_refused


def test_a_name_of_each_type_is_read(jemalloc: str) -> None:
    names = {
        "config.stats": "bool",
        "arenas.narenas": "unsigned",
        "arenas.bin.0.nregs": "uint32_t",
        "thread.allocated": "uint64_t",
        "opt.stats_interval": "int64_t",
        "stats.allocated": "size_t",
        "opt.lg_prof_interval": "ssize_t",
        "opt.dirty_decay_ms": "ssize_t",
        "version": "const char *",
    }
    if not ask('tell(prof=heap.mallctl.read("config.prof", "bool"))', jemalloc)["prof"]:
        del names["opt.lg_prof_interval"]
    answer = ask(
        f"tell(read={{name: heap.mallctl.read(name, kind) for name, kind in {names!r}.items()}})",
        jemalloc,
        MALLOC_CONF="dirty_decay_ms:-1",
    )
    read = answer["read"]
    assert read["config.stats"] is True
    assert read["opt.dirty_decay_ms"] == -1
    assert read["opt.stats_interval"] == -1
    assert read["arenas.narenas"] >= 1
    assert read["stats.allocated"] > 1 << 20
    assert read["version"][0].isdecimal()


def test_statistics_are_of_the_moment_of_reading(jemalloc: str) -> None:
    answer = ask(
        """
before = heap.mallctl.read("stats.allocated", "size_t")
block(16 * MIB)
tell(grown=heap.mallctl.read("stats.allocated", "size_t") - before)
""",
        jemalloc,
    )
    # Small blocks of the interpreter may have been freed meanwhile.
    assert 15 << 20 <= answer["grown"] <= 20 << 20


def test_what_is_written_is_read_back(jemalloc: str) -> None:
    written = [
        ("background_thread", "bool", [True, False]),
        ("max_background_threads", "size_t", [2]),
        ("arenas.dirty_decay_ms", "ssize_t", [-1, 0, 5000]),
        ("arena.0.dss", "const char *", ["disabled", "secondary"]),
    ]
    answer = ask(
        f"""
def read_back(name, kind, value):
    heap.mallctl.write(name, value, kind)
    return heap.mallctl.read(name, kind)

tell(read=[[read_back(name, kind, value) for value in values] for name, kind, values in {written!r}])
""",
        jemalloc,
    )
    assert answer["read"] == [values for *_, values in written]


MISUSES = [
    ('read("stats.alocated", "size_t")', "UnknownSettingError", "no such name"),
    ('read("stats.arenas.900.pactive", "size_t")', "UnknownSettingError", "no such name"),
    ('read("stats.allocated", "uint32_t")', "SettingTypeError", "type is another"),
    ('read("stats.allocated", "double")', "SettingTypeError", "there are bool, unsigned"),
    ('write("opt.narenas", 4, "unsigned")', "ReadOnlySettingError", "jemalloc refuses"),
    ('write("background_thread", 1, "bool")', "SettingTypeError", "neither True nor False"),
    ('write("arenas.dirty_decay_ms", True, "ssize_t")', "SettingTypeError", "not an integer"),
    ('write("arenas.dirty_decay_ms", 0.5, "ssize_t")', "SettingTypeError", "not an integer"),
    ('write("arenas.dirty_decay_ms", -2, "ssize_t")', "SettingValueError", "jemalloc refuses"),
    ('write("arenas.dirty_decay_ms", 1 << 70, "ssize_t")', "SettingValueError", "-9223372036"),
    ('write("thread.arena", -1, "unsigned")', "SettingValueError", "are 0 to 4294967295"),
    ('write("arena.0.dss", "sideways", "const char *")', "SettingValueError", "sideways"),
    ('write("arena.0.dss", 3, "const char *")', "SettingTypeError", "not text"),
    ('write("arena.0.dss", "a\\0b", "const char *")', "SettingTypeError", "null characters"),
    ('call("arena.0.destroy")', "SettingValueError", "arena.0.destroy: jemalloc refuses"),
]


def test_each_misuse_has_its_error(jemalloc: str) -> None:
    calls = ", ".join(f"lambda: heap.mallctl.{call}" for call, *_ in MISUSES)
    answer = ask(f"tell(refused=[refusal(call) for call in ({calls})])", jemalloc)
    assert_refused(MISUSES, answer["refused"])


def test_a_thread_without_a_cache_can_release(jemalloc: str) -> None:
    answer = ask(
        """
address = block(MIB)
free(address)
tell(refused=refusal(heap.mallctl.call, "thread.tcache.flush"), released=allocator.release())
""",
        jemalloc,
        MALLOC_CONF="tcache:false",
    )
    assert answer["refused"][0] == "SettingValueError"
    assert answer["released"] >= 0


def test_release_empties_the_cache_of_the_calling_thread(jemalloc: str) -> None:
    """Blocks in it count as allocated: jemalloc keeps some of each size for the thread that freed them."""
    answer = ask(
        """
for address in [block(8 * 1024) for _ in range(100)]:
    free(address)
before = heap.mallctl.read("stats.allocated", "size_t")
allocator.release()
tell(given_back=before - heap.mallctl.read("stats.allocated", "size_t"))
""",
        jemalloc,
    )
    assert answer["given_back"] >= 5 * 8 * 1024


def test_settings_are_those_of_malloc_conf(jemalloc: str) -> None:
    answer = ask(
        """
written = heap.write("arenas.dirty_decay_ms", 5)
tell(settings=heap.settings(), written=written, read=heap.read("arenas.dirty_decay_ms"),
     refused=[refusal(heap.write, "opt.narenas", 4), refusal(heap.read, "opt.arenas")])
""",
        jemalloc,
        MALLOC_CONF="narenas:3,dirty_decay_ms:77,oversize_threshold:4194304",
    )
    told = {name: (value, unit, writable) for name, value, unit, writable, _ in answer["settings"]}
    assert told["opt.narenas"] == (3, None, False)
    assert told["opt.dirty_decay_ms"] == (77, "ms", False)
    assert told["arenas.dirty_decay_ms"] == (5, "ms", True)
    assert told["opt.oversize_threshold"] == (4 << 20, "bytes", False)
    assert answer["written"][1] == answer["read"] == 5
    assert [name for name, _ in answer["refused"]] == [
        "ReadOnlySettingError",
        "UnknownSettingError",
    ]


def test_what_needs_jemalloc_names_the_allocator_and_the_remedy(glibc: None) -> None:
    asked = ('read("version", "const char *")', 'call("arena.0.purge")')
    calls = ", ".join(f"lambda: heap.mallctl.{call}" for call in asked)
    for name, text in ask(f"tell(refused=[refusal(call) for call in ({calls})])")["refused"]:
        assert name == "AllocatorUnsupportedError"
        assert "glibc" in text
        assert "xlaunch --allocator jemalloc" in text
