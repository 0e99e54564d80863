# SPDX-License-Identifier: Apache-2.0
"""The mailbox's Python side: its settings and its memory; tests/kernels tests the mailbox itself."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
from tests.runtime_ext.interpreters import python

from xruntime.native import quick_library
from xruntime.threads import mailbox
from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.mailbox import Mailbox


@pytest.mark.parametrize(("cpus", "spin_us"), [(1, 0), (2, 50)])
def test_waiting_spins_only_if_the_other_side_can_run(
    cpus: int, spin_us: int, two: CPUPool
) -> None:
    script = (
        f"import os; os.sched_setaffinity(0, {two.core_ids[:cpus]});"
        " from xruntime.threads.mailbox import SPIN_US; print(SPIN_US)"
    )
    assert python("-c", script) == f"{spin_us}\n"


@pytest.fixture
def destroyed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The handles of the mailboxes that were destroyed."""
    real, handles = quick_library(), list[int]()

    def destroy(handle: int) -> None:
        handles.append(handle)
        real.xk_mailbox_destroy(handle)

    kernels = SimpleNamespace(
        xk_mailbox_create=real.xk_mailbox_create,
        xk_mailbox_close=real.xk_mailbox_close,
        xk_mailbox_destroy=destroy,
    )
    monkeypatch.setattr(mailbox, "quick_library", lambda: kernels)
    return handles


def test_a_mailbox_nobody_holds_is_destroyed_once(destroyed: list[int]) -> None:
    one, other = Mailbox(), Mailbox()
    assert (one.post(), other.post()) == (1, 1)
    del one
    gc.collect()
    assert len(destroyed) == 1
    other.close()
    assert len(destroyed) == 1, "closing keeps the memory: the worker still reads it"
    del other
    gc.collect()
    assert len(set(destroyed)) == len(destroyed) == 2


def test_without_memory_nothing_is_destroyed(
    destroyed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = mailbox.quick_library()
    monkeypatch.setattr(kernels, "xk_mailbox_create", lambda spin_us, grace_us: None)
    with pytest.raises(MemoryError, match="no memory for a mailbox"):
        Mailbox()
    gc.collect()
    assert destroyed == []
