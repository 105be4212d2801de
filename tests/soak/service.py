"""`lengnuan-serve` with an engine that fails on purpose: it raises, gives NaN, or is slow where a text asks for it."""

import struct
import sys
import time
import zlib

import numpy as np
from service_fixtures import FakeEngine

from lengnuan.model.tokenizer import FIRST_BYTE_ID
from lengnuan.service.__main__ import serve
from lengnuan.service.logs import configure_logging
from lengnuan.service.settings import Settings

# Characters that are no pieces, so they become bytes, of which the first is in no other text.
RAISES, NOT_A_NUMBER, SLOW = "悲", "ж", "α"
SLOW_S = 0.005


def _first_byte_id(character: str) -> int:
    return FIRST_BYTE_ID + character.encode()[0]


def logits_of(ids: list[int]) -> list[float]:
    """Different for different rows, also after the softmax, and within ±4."""
    place = zlib.crc32(struct.pack(f"<{len(ids)}i", *ids))
    return [(place & 0xFFFF) / 8192 - 4, (place >> 16) / 8192 - 4]


class FaultyEngine(FakeEngine):
    """The logits of `logits_of`, unless a row of the batch asks for a fault. Keeps nothing of what it ran."""

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if (token_ids == _first_byte_id(SLOW)).any():
            time.sleep(SLOW_S)
        if (token_ids == _first_byte_id(RAISES)).any():
            raise RuntimeError("a fault on purpose")
        logits = np.array(
            [logits_of(ids[real].tolist()) for ids, real in zip(token_ids, mask, strict=True)], dtype=np.float32
        )
        logits[(token_ids == _first_byte_id(NOT_A_NUMBER)).any(axis=1)] = np.nan
        return logits


if __name__ == "__main__":
    configure_logging("info", sys.stderr, "json")
    serve(Settings.from_command_line(sys.argv[1:]), FaultyEngine())
