"""Giving freed memory back while a training runs.

Batches differ in shape, so what glibc's allocator keeps for the next batch rarely fits it: after an hour a process that
needs 1.5 GB holds 8. Trimming now and then returns the unused pages; it changes no result.
"""

import ctypes
import functools
from collections.abc import Callable

STEPS_BETWEEN_TRIMS = 50


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """Glibc's malloc_trim, or None where there is none (musl, macOS, Windows)."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found


def trim_memory(step: int) -> None:
    """Return unused pages to the system at every `STEPS_BETWEEN_TRIMS`-th step."""
    trim = _trim()
    if trim is not None and step % STEPS_BETWEEN_TRIMS == 0:
        trim(0)
