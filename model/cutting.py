"""Which tokens of a text the network reads when it can't read them all at once.

Tokens are ids, or anything that goes with them one by one. An `enclosed` text has a start and an end token, which
every part keeps.
"""

from collections.abc import Sequence
from typing import Literal, TypeVar

from lengnuan.model.tokenizer import cut

T = TypeVar("T")
# `truncate` keeps head and tail, as in training; `window` reads all of it, in overlapping parts.
Cutting = Literal["truncate", "head", "tail", "window"]
# Neighbouring windows share at least this part, so that nothing is seen only at the edge of one.
SHARED = 0.25


def parts(tokens: Sequence[T], max_tokens: int, cutting: Cutting, enclosed: bool) -> list[list[T]]:
    """What goes through the network: one part of at most `max_tokens`, or, for `window`, as many as needed."""
    if len(tokens) <= max_tokens:
        return [list(tokens)]
    room = max_tokens - 2 * enclosed
    if cutting == "truncate" or room < 1:
        return [cut(tokens, max_tokens)]
    inner = tokens[1:-1] if enclosed else tokens
    starts = {"head": [0], "tail": [len(inner) - room], "window": _starts(len(inner), room)}[cutting]
    first, last = (tokens[:1], tokens[-1:]) if enclosed else ((), ())
    return [[*first, *inner[start : start + room], *last] for start in starts]


def _starts(length: int, room: int) -> list[int]:
    """Evenly spaced, the first at 0 and the last at `length - room`, which is at least 1."""
    step = room - int(SHARED * room)
    gaps = -(-(length - room) // step)
    return [round(i * (length - room) / gaps) for i in range(gaps + 1)]
