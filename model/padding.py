"""Ragged rows of ids to one rectangle and its mask."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Pad every row on the right to the longest one.

    Args:
        rows: at least one row of token ids; rows may differ in length, and one may be empty.
        pad_id: the id to fill with; the mask makes its value irrelevant.

    Returns:
        `token_ids: int64 [B, T]` and `mask: bool [B, T]`, True = real token. T is at least 1.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("pad needs at least one row")
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(max(1, int(lengths.max()))) < lengths[:, None]
    token_ids = np.full(mask.shape, pad_id, dtype=np.int64)
    token_ids[mask] = [token_id for row in rows for token_id in row]
    return token_ids, mask
