# SPDX-License-Identifier: Apache-2.0
"""The names of jemalloc's mallctl, what type each has, and what can be done with it.

mallctl does not tell types: it checks the size of what it is given and nothing else. Source:
jemalloc(3), MALLCTL NAMESPACE, and src/ctl.c, of jemalloc 5.3.0; the tests read every one of them.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

TEXT = "text"
"""const char *"""
NOTHING = "nothing"
"""A command: neither read nor written."""

INTEGERS: dict[str, type[ctypes._SimpleCData[int]]] = {
    "unsigned": ctypes.c_uint,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "int64": ctypes.c_int64,
    "size": ctypes.c_size_t,
    "ssize": ctypes.c_ssize_t,
}
"""Types by the word that the table uses; besides these there are bool, text and nothing."""

SIGNED = ("int64", "ssize")

VALUE_TYPES = ("bool", *INTEGERS, TEXT)


class Name(NamedTuple):
    """A name of the mallctl name space, with numbers and mutexes left open.

    **Ex.:** ``Name("arena.<i>.dirty_decay_ms", "ssize", "rw")``
    """

    pattern: str
    kind: str
    """One of `VALUE_TYPES`, or `NOTHING`."""
    access: str
    """r: can be read; w: can be written; c: can be called."""


_TABLE = """
version                                   text      r
epoch                                     uint64    rw
background_thread                         bool      rw
max_background_threads                    size      rw

config.cache_oblivious                    bool      r
config.debug                              bool      r
config.fill                               bool      r
config.lazy_lock                          bool      r
config.malloc_conf                        text      r
config.opt_safety_checks                  bool      r
config.prof                               bool      r
config.prof_libgcc                        bool      r
config.prof_libunwind                     bool      r
config.stats                              bool      r
config.utrace                             bool      r
config.xmalloc                            bool      r

opt.abort                                 bool      r
opt.abort_conf                            bool      r
opt.background_thread                     bool      r
opt.cache_oblivious                       bool      r
opt.confirm_conf                          bool      r
opt.dirty_decay_ms                        ssize     r
opt.dss                                   text      r
opt.hpa                                   bool      r
opt.junk                                  text      r
opt.lg_extent_max_active_fit              size      r
opt.lg_prof_interval                      ssize     r
opt.lg_prof_sample                        size      r
opt.lg_tcache_nslots_mul                  ssize     r
opt.max_background_threads                size      r
opt.metadata_thp                          text      r
opt.mutex_max_spin                        int64     r
opt.muzzy_decay_ms                        ssize     r
opt.narenas                               unsigned  r
opt.oversize_threshold                    size      r
opt.percpu_arena                          text      r
opt.prof                                  bool      r
opt.prof_accum                            bool      r
opt.prof_active                           bool      r
opt.prof_final                            bool      r
opt.prof_gdump                            bool      r
opt.prof_leak                             bool      r
opt.prof_leak_error                       bool      r
opt.prof_prefix                           text      r
opt.prof_stats                            bool      r
opt.prof_sys_thread_name                  bool      r
opt.prof_thread_active_init               bool      r
opt.prof_time_resolution                  text      r
opt.retain                                bool      r
opt.stats_interval                        int64     r
opt.stats_interval_opts                   text      r
opt.stats_print                           bool      r
opt.stats_print_opts                      text      r
opt.tcache                                bool      r
opt.tcache_gc_delay_bytes                 size      r
opt.tcache_gc_incr_bytes                  size      r
opt.tcache_max                            size      r
opt.tcache_nslots_large                   unsigned  r
opt.tcache_nslots_small_max               unsigned  r
opt.tcache_nslots_small_min               unsigned  r
opt.thp                                   text      r
opt.trust_madvise                         bool      r
opt.utrace                                bool      r
opt.xmalloc                               bool      r
opt.zero                                  bool      r
opt.zero_realloc                          text      r

thread.allocated                          uint64    r
thread.arena                              unsigned  rw
thread.deallocated                        uint64    r
thread.idle                               nothing   c
thread.peak.read                          uint64    r
thread.peak.reset                         nothing   c
thread.prof.active                        bool      rw
thread.prof.name                          text      rw
thread.tcache.enabled                     bool      rw
thread.tcache.flush                       nothing   c

tcache.create                             unsigned  r
tcache.destroy                            unsigned  w
tcache.flush                              unsigned  w

arena.<i>.decay                           nothing   c
arena.<i>.destroy                         nothing   c
arena.<i>.dirty_decay_ms                  ssize     rw
arena.<i>.dss                             text      rw
arena.<i>.initialized                     bool      r
arena.<i>.muzzy_decay_ms                  ssize     rw
arena.<i>.oversize_threshold              size      rw
arena.<i>.purge                           nothing   c
arena.<i>.reset                           nothing   c
arena.<i>.retain_grow_limit               size      rw

arenas.bin.<i>.nregs                      uint32    r
arenas.bin.<i>.nshards                    uint32    r
arenas.bin.<i>.size                       size      r
arenas.bin.<i>.slab_size                  size      r
arenas.create                             unsigned  r
arenas.dirty_decay_ms                     ssize     rw
arenas.lextent.<i>.size                   size      r
arenas.muzzy_decay_ms                     ssize     rw
arenas.narenas                            unsigned  r
arenas.nbins                              unsigned  r
arenas.nhbins                             unsigned  r
arenas.nlextents                          unsigned  r
arenas.page                               size      r
arenas.quantum                            size      r
arenas.tcache_max                         size      r

prof.active                               bool      rw
prof.dump                                 text      wc
prof.gdump                                bool      rw
prof.interval                             uint64    r
prof.lg_sample                            size      r
prof.prefix                               text      w
prof.reset                                size      wc
prof.thread_active_init                   bool      rw

stats.active                              size      r
stats.allocated                           size      r
stats.background_thread.num_runs          uint64    r
stats.background_thread.num_threads       size      r
stats.background_thread.run_interval      uint64    r
stats.mapped                              size      r
stats.metadata                            size      r
stats.metadata_thp                        size      r
stats.mutexes.reset                       nothing   c
stats.resident                            size      r
stats.retained                            size      r
stats.zero_reallocs                       size      r

stats.arenas.<i>.abandoned_vm             size      r
stats.arenas.<i>.base                     size      r
stats.arenas.<i>.dirty_decay_ms           ssize     r
stats.arenas.<i>.dirty_nmadvise           uint64    r
stats.arenas.<i>.dirty_npurge             uint64    r
stats.arenas.<i>.dirty_purged             uint64    r
stats.arenas.<i>.dss                      text      r
stats.arenas.<i>.extent_avail             size      r
stats.arenas.<i>.internal                 size      r
stats.arenas.<i>.large.allocated          size      r
stats.arenas.<i>.large.ndalloc            uint64    r
stats.arenas.<i>.large.nfills             uint64    r
stats.arenas.<i>.large.nflushes           uint64    r
stats.arenas.<i>.large.nmalloc            uint64    r
stats.arenas.<i>.large.nrequests          uint64    r
stats.arenas.<i>.mapped                   size      r
stats.arenas.<i>.metadata_thp             size      r
stats.arenas.<i>.muzzy_decay_ms           ssize     r
stats.arenas.<i>.muzzy_nmadvise           uint64    r
stats.arenas.<i>.muzzy_npurge             uint64    r
stats.arenas.<i>.muzzy_purged             uint64    r
stats.arenas.<i>.nthreads                 unsigned  r
stats.arenas.<i>.pactive                  size      r
stats.arenas.<i>.pdirty                   size      r
stats.arenas.<i>.pmuzzy                   size      r
stats.arenas.<i>.resident                 size      r
stats.arenas.<i>.retained                 size      r
stats.arenas.<i>.small.allocated          size      r
stats.arenas.<i>.small.ndalloc            uint64    r
stats.arenas.<i>.small.nfills             uint64    r
stats.arenas.<i>.small.nflushes           uint64    r
stats.arenas.<i>.small.nmalloc            uint64    r
stats.arenas.<i>.small.nrequests          uint64    r
stats.arenas.<i>.tcache_bytes             size      r
stats.arenas.<i>.tcache_stashed_bytes     size      r
stats.arenas.<i>.uptime                   uint64    r

stats.arenas.<i>.bins.<i>.curregs         size      r
stats.arenas.<i>.bins.<i>.curslabs        size      r
stats.arenas.<i>.bins.<i>.ndalloc         uint64    r
stats.arenas.<i>.bins.<i>.nfills          uint64    r
stats.arenas.<i>.bins.<i>.nflushes        uint64    r
stats.arenas.<i>.bins.<i>.nmalloc         uint64    r
stats.arenas.<i>.bins.<i>.nonfull_slabs   size      r
stats.arenas.<i>.bins.<i>.nrequests       uint64    r
stats.arenas.<i>.bins.<i>.nreslabs        uint64    r
stats.arenas.<i>.bins.<i>.nslabs          uint64    r
stats.arenas.<i>.extents.<i>.dirty_bytes     size   r
stats.arenas.<i>.extents.<i>.muzzy_bytes     size   r
stats.arenas.<i>.extents.<i>.ndirty          size   r
stats.arenas.<i>.extents.<i>.nmuzzy          size   r
stats.arenas.<i>.extents.<i>.nretained       size   r
stats.arenas.<i>.extents.<i>.retained_bytes  size   r
stats.arenas.<i>.lextents.<i>.curlextents size      r
stats.arenas.<i>.lextents.<i>.ndalloc     uint64    r
stats.arenas.<i>.lextents.<i>.nmalloc     uint64    r
stats.arenas.<i>.lextents.<i>.nrequests   uint64    r
"""

_COUNTERS = """
max_num_thds      uint32
max_wait_time     uint64
num_ops           uint64
num_owner_switch  uint64
num_spin_acq      uint64
num_wait          uint64
total_wait_time   uint64
"""
"""What is counted of each mutex."""

_MUTEXES = (
    "stats.mutexes.<mutex>",
    "stats.arenas.<i>.mutexes.<mutex>",
    "stats.arenas.<i>.bins.<i>.mutex",
)

NAMES = {
    row.pattern: row
    for row in (
        *(Name(*line.split()) for line in _TABLE.split("\n") if line),
        *(
            Name(f"{mutex}.{counter}", kind, "r")
            for mutex in _MUTEXES
            for counter, kind in (line.split() for line in _COUNTERS.split("\n") if line)
        ),
    )
}


def find_name(name: str) -> Name | None:
    """The row that `name` is of; None when there is none.

    **Ex.:** ``find_name("arena.3.purge").pattern`` is ``"arena.<i>.purge"``
    """
    parts = ["<i>" if part.isdecimal() else part for part in name.split(".")]
    if "mutexes" in parts[:-2]:
        parts[parts.index("mutexes") + 1] = "<mutex>"
    return NAMES.get(".".join(parts))
