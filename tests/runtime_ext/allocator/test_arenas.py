# SPDX-License-Identifier: Apache-2.0
"""jemalloc's arenas: a thread that enters one allocates from it, and nothing is torn out of use."""

from __future__ import annotations

import pytest
from tests.runtime_ext.allocator.children import MIB, ask


def test_blocks_of_every_size_are_of_the_arena_that_was_entered(jemalloc: str) -> None:
    """Small ones too: what the thread's cache held of the former arena is not handed out."""
    answer = ask(
        """
sizes = [24, 200, 3_000, 40_000, 500_000, 20 * MIB]
for size in sizes[:4]:  # the thread's cache now holds blocks of the former arena
    for address in [block(size) for _ in range(50)]:
        free(address)
outside = jemalloc.thread_arena()
with allocator.arena() as own:
    inside = jemalloc.thread_arena()
    blocks = [block(size) for size in sizes for _ in range(10)]
    stats = own.stats()
after = jemalloc.thread_arena()
later = [block(size) for size in sizes[:5]]
tell(outside=outside.index, own=own.index, inside=inside.index, after=after.index,
     of=sorted({jemalloc.arena_of(address).index for address in blocks}),
     later=sorted({jemalloc.arena_of(address).index for address in later}),
     listed=[arena.index for arena in jemalloc.arenas()], stats=stats._asdict(), sizes=sizes)
""",
        jemalloc,
    )
    own, outside = answer["own"], answer["outside"]
    assert own != outside
    assert answer["inside"] == own
    assert answer["after"] == outside
    assert answer["of"] == [own]
    assert answer["later"] == [outside]
    assert {own, outside} <= set(answer["listed"])
    assert answer["stats"]["allocated"] >= 10 * sum(answer["sizes"])
    assert answer["stats"]["threads"] == 1
    assert answer["stats"]["active"] >= answer["stats"]["allocated"]


def test_a_pool_of_threads_owns_an_arena(jemalloc: str) -> None:
    """Each worker enters for itself; others are not touched; blocks may be freed elsewhere."""
    answer = ask(
        """
pool = jemalloc.create_arena()
pool.set_decay(dirty_ms=-1, muzzy_ms=-1)
main = jemalloc.thread_arena()

def work():
    with allocator.arena(pool):
        return jemalloc.thread_arena().index, [block(MIB) for _ in range(8)]

results = [in_thread(work) for _ in range(3)]
idle = in_thread(lambda: jemalloc.thread_arena().index)
blocks = [address for _, addresses in results for address in addresses]
of = sorted({jemalloc.arena_of(address).index for address in blocks})
held = pool.stats()
for address in blocks:
    free(address)
kept = pool.stats()
pool.purge()
purged = pool.stats()
tell(pool=pool.index, main=main.index, workers=[index for index, _ in results], idle=idle, of=of,
     still=jemalloc.thread_arena().index, held=held._asdict(), kept=kept._asdict(),
     purged=purged._asdict())
""",
        jemalloc,
    )
    pool = answer["pool"]
    assert answer["workers"] == [pool] * 3
    assert answer["of"] == [pool]
    assert answer["idle"] != pool
    assert answer["main"] == answer["still"] != pool
    assert answer["held"]["allocated"] >= 24 * MIB
    assert answer["held"]["threads"] == 0
    assert answer["kept"]["allocated"] < MIB
    assert answer["kept"]["dirty"] >= 20 * MIB
    assert answer["purged"]["dirty"] == answer["purged"]["muzzy"] == 0


def test_former_arena_comes_back_after_an_exception_and_in_order(jemalloc: str) -> None:
    answer = ask(
        """
first, second = jemalloc.create_arena(), jemalloc.create_arena()
outside = jemalloc.thread_arena()
seen = []
try:
    with allocator.arena(first):
        with allocator.arena(second.index):
            seen.append(jemalloc.thread_arena())
        seen.append(jemalloc.thread_arena())
        raise KeyError("x")
except KeyError:
    seen.append(jemalloc.thread_arena())
tell(seen=[arena.index for arena in seen], expected=[second.index, first.index, outside.index])
""",
        jemalloc,
    )
    assert answer["seen"] == answer["expected"]


def test_arena_in_use_is_not_destroyed(jemalloc: str) -> None:
    answer = ask(
        """
arena = jemalloc.create_arena()

def fill():
    with allocator.arena(arena):
        inside = refusal(arena.destroy)
        return inside, block(MIB)

inside, address = in_thread(fill)
while_used = refusal(arena.destroy)
tell(inside=inside, while_used=while_used, listed=arena in jemalloc.arenas(),
     of=jemalloc.arena_of(address) == arena)
""",
        jemalloc,
    )
    assert answer["inside"][0] == answer["while_used"][0] == "ArenaInUseError"
    assert "1 threads are set to it" in answer["inside"][1]
    assert "bytes of it are in use" in answer["while_used"][1]
    assert answer["listed"]
    assert answer["of"]


def test_destroyed_arena_cannot_be_entered_and_its_number_comes_again(jemalloc: str) -> None:
    answer = ask(
        """
arena = jemalloc.create_arena()
before = arena in jemalloc.arenas()
arena.destroy()
after = arena in jemalloc.arenas()
with_it = refusal(lambda: allocator.arena(arena).__enter__())
unmoved = jemalloc.thread_arena()
tell(before=before, after=after, refused=with_it, again=jemalloc.create_arena() == arena,
     own=refusal(jemalloc.arenas()[0].destroy), negative=refusal(lambda: allocator.arena(-1).__enter__()))
""",
        jemalloc,
    )
    assert answer["before"]
    assert not answer["after"]
    assert answer["refused"][0] == answer["negative"][0] == "SettingValueError"
    assert "there is no such arena; there are 0" in answer["refused"][1]
    assert answer["again"]
    assert answer["own"][0] in ("ArenaInUseError", "SettingValueError")


def test_discarded_arena_takes_its_blocks_with_it(jemalloc: str) -> None:
    answer = ask(
        """
arena = jemalloc.create_arena()

def fill():
    with allocator.arena(arena):
        block(32 * MIB)

in_thread(fill)
refused = refusal(arena.destroy)
before = exact_resident()
arena.destroy(discard=True)
tell(refused=refused, fell=before - exact_resident(), listed=arena in jemalloc.arenas())
""",
        jemalloc,
    )
    assert answer["refused"][0] == "ArenaInUseError"
    assert answer["fell"] >= 30 * MIB
    assert not answer["listed"]


def test_decay_times_are_of_each_arena(jemalloc: str) -> None:
    answer = ask(
        """
one, other = jemalloc.create_arena(), jemalloc.create_arena()
start = other.decay()
told = one.set_decay(dirty_ms=-1, muzzy_ms=250)
part = one.set_decay(muzzy_ms=0)
tell(start=start, told=told, part=part, read=one.decay(), other=other.decay(),
     refused=refusal(lambda: one.set_decay(dirty_ms=-5)))
""",
        jemalloc,
        MALLOC_CONF="dirty_decay_ms:4000,muzzy_decay_ms:30",
    )
    assert answer["start"] == answer["other"] == [4000, 30]
    assert answer["told"] == [-1, 250]
    assert answer["part"] == answer["read"] == [-1, 0]
    assert answer["refused"][0] == "SettingValueError"


@pytest.mark.parametrize("mode", ["percpu", "phycpu"])
def test_arena_cannot_be_chosen_where_the_cpu_chooses_it(mode: str, jemalloc: str) -> None:
    answer = ask(
        "tell(refused=refusal(lambda: allocator.arena().__enter__()))",
        jemalloc,
        MALLOC_CONF=f"percpu_arena:{mode}",
    )
    assert answer["refused"][0] == "AllocatorUnsupportedError"
    assert "percpu_arena:disabled" in answer["refused"][1]


def test_arena_is_entered_without_a_thread_cache(jemalloc: str) -> None:
    answer = ask(
        """
with allocator.arena() as arena:
    address = block(100)
tell(of=jemalloc.arena_of(address).index, arena=arena.index)
""",
        jemalloc,
        MALLOC_CONF="tcache:false",
    )
    assert answer["of"] == answer["arena"]
