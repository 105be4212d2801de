"""Answers kept for texts that come again."""

from collections import OrderedDict

from lengnuan.model.engine import Logits


class LogitsCache:
    """The newest logits of one model, by the ids of their texts; the one unused for longest goes first.

    Equal ids have equal logits, whatever they were batched with; in bfloat16, where the batch moves them within the
    bundle's bound, the first ones stay.

    Args:
        size: answers kept; 0 keeps none.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: OrderedDict[bytes, Logits] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes) -> Logits | None:
        """The logits (float32 [K]) put under `key`, if they are still kept."""
        logits = self._kept.get(key)
        if logits is not None:
            self._kept.move_to_end(key)
        return logits

    def put(self, key: bytes, logits: Logits) -> None:
        """Keep a copy of `logits` (float32 [K], maybe a row of a whole batch)."""
        if self._size:
            self._kept[key] = logits.copy()
            self._kept.move_to_end(key)
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
