"""How the allocator treats freed memory while a training runs; it changes no result.

A step frees hundreds of megabytes and asks for as many again. glibc hands each large block back to the system at once,
which has to give zeroed pages for it a moment later: a fifth of the time of a small network's step. So freed blocks are
kept. But batches differ in shape, so what is kept rarely fits the next one: after an hour a process that needs 1.5 GB
would hold 8. So the unused pages go back now and then.
"""

import ctypes
import functools

STEPS_BETWEEN_TRIMS = 50

# Parameters of mallopt(3), from glibc's malloc.h, with their values here.
_KEEP = (
    (-4, 0),  # M_MMAP_MAX: no block gets a mapping of its own, which would be given back when it is freed
    (-1, 2**31 - 1),  # M_TRIM_THRESHOLD: free bytes at the top of the heap before they are given back
    (-2, 64 << 20),  # M_TOP_PAD: bytes asked of the system beyond what is needed
)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """The C library, or None where it is another (musl, macOS, Windows)."""
    try:
        library = ctypes.CDLL(None)
        _ = library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return library


def keep_freed_memory() -> None:
    """Keep freed blocks in this process, from now on."""
    library = _glibc()
    if library is not None:
        for parameter, value in _KEEP:
            library.mallopt(parameter, value)


def trim_memory(step: int) -> None:
    """Return unused pages to the system at every `STEPS_BETWEEN_TRIMS`-th step."""
    library = _glibc()
    if library is not None and step % STEPS_BETWEEN_TRIMS == 0:
        library.malloc_trim(0)
