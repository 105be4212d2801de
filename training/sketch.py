"""Which characters follow which, in a fixed number of cells: comparable between sets of texts, and no text in it.

A text's neighbouring characters (after `normalise`, with both ends marked) are hashed into `CELLS` cells. Each text
weighs the same, however long it is, so that one long text moves nothing; a sketch is the mean over texts.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.special import rel_entr

from lengnuan.model.text import normalise

CELLS = 1024
SIZES = (20, 50, 100, 200, 500, 1000, 2000)  # sample sizes that chance is measured for
DRAWS = 200
ABOVE_CHANCE = 3.09  # standard deviations: one sample in a thousand, were it normal
KEPT = 4 * SIZES[-1]  # texts that samples are drawn from

Cells = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def cells_of(text: str) -> Cells:
    """The cell of each pair of neighbours: int64 [characters + 1]."""
    codes = np.frombuffer(f"\0{normalise(text)}\0".encode("utf-32-le"), dtype="<u4").astype(np.uint32)
    mixed = codes[:-1] * np.uint32(0x9E3779B1) + codes[1:] * np.uint32(0x85EBCA77)  # modulo 2^32, on purpose
    mixed ^= mixed >> np.uint32(15)
    return ((mixed * np.uint32(0x2C1B3C6D)) >> np.uint32(22)).astype(np.int64)


def divergence_bits(first: Floats, second: Floats) -> Floats:
    """Jensen-Shannon divergence along the last axis, in bits: 0 for equal shares, 1 for nothing in common.

    Lin 1991 (IEEE Transactions on Information Theory 37:145). Unlike the population stability index it needs no made-up
    share for a cell that one side never saw; for small shifts it is that index / (8 ln 2).

    Args:
        first: float64 [..., K], each summing to 1.
        second: likewise.
    """
    middle = (first + second) / 2.0
    nats = (rel_entr(first, middle) + rel_entr(second, middle)).sum(axis=-1) / 2.0
    found: Floats = np.maximum(nats, 0.0) / np.log(2.0)
    return found


class Sketch:
    """The sum over texts added so far, and a fair sample of their cells (reservoir, seeded)."""

    def __init__(self) -> None:
        self.rows = 0
        self.total = np.zeros(CELLS)
        self._kept: list[Cells] = []
        self._draw = np.random.default_rng(0)

    def add(self, text: str) -> None:
        """Count one text."""
        cells = cells_of(text)
        np.add.at(self.total, cells, 1.0 / len(cells))
        self.rows += 1
        if len(self._kept) < KEPT:
            self._kept.append(cells)
        elif (place := int(self._draw.integers(self.rows))) < KEPT:
            self._kept[place] = cells

    def shares(self) -> Floats:
        """Float64 [CELLS], summing to 1; zeros before any text."""
        return self.total / max(1, self.rows)

    def chance(self) -> dict[int, float]:
        """By sample size: the divergence that so few of these same texts reach by chance, once in a thousand times.

        Measured: `DRAWS` samples of that size against all the other texts. A closed form would need neighbours in a
        text to be independent of each other, and they are not.
        """
        sizes = [size for size in SIZES if 2 * size <= len(self._kept)]
        if not sizes and self.rows >= 4:
            sizes = [self.rows // 2]
        rows = _matrix(self._kept)
        found = {}
        for size in sizes:
            picks = [self._draw.choice(len(self._kept), size, replace=False) for _ in range(DRAWS)]
            chosen = csr_array(
                (np.ones(DRAWS * size), np.concatenate(picks), np.arange(DRAWS + 1) * size), (DRAWS, len(self._kept))
            )
            sums = (chosen @ rows).toarray()
            distances = divergence_bits(sums / size, np.maximum(self.total - sums, 0.0) / (self.rows - size))
            found[size] = float(distances.mean() + ABOVE_CHANCE * distances.std())
        return found


def _matrix(kept: Sequence[Cells]) -> "csr_array":
    """Each text's shares: float64 [rows, CELLS]."""
    lengths = np.array([len(cells) for cells in kept], dtype=np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    values = np.repeat(1.0 / np.maximum(lengths, 1), lengths)
    columns = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
    return csr_array((values, columns, ends), (len(kept), CELLS))


def chance_at(measured: Mapping[int, float], rows: int, reference_rows: int) -> float:
    """What `rows` texts reach by chance, from what was measured for other sizes; 1 where nothing was.

    Chance falls like 1 / rows + 1 / reference_rows; the next larger size that was measured is taken, which errs on the
    side of silence.
    """
    larger = [size for size in measured if size >= rows]
    size = min(larger) if larger else max(measured, default=0)
    if not size or not rows:
        return 1.0
    scale = (1.0 / rows + 1.0 / reference_rows) / (1.0 / size + 1.0 / max(1, reference_rows - size))
    return min(1.0, measured[size] * scale)
