"""What a run says while it works: a progress bar or plain lines, a JSONL metrics file, TensorBoard logs."""

import json
import logging
import math
import os
import sys
import time
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from lengnuan.training.distributed import is_first
from lengnuan.training.trial import Trial, watching

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 30.0
METRICS = "metrics.jsonl"


class RunLog:
    """Use as a context manager. A resumed run drops what an interrupted one wrote after its checkpoint.

    Of processes that train together the first alone writes.

    `judged` is the step that was last evaluated: whether an evaluation is still owed.

    Args:
        folder: gets `metrics.jsonl` and `tensorboard/`.
        name: of the stage, in the bar and in every row.
        steps: how many there will be.
    """

    def __init__(self, folder: Path, name: str, *, steps: int) -> None:
        self.judged = 0
        self._path = folder / METRICS
        self._board_folder = folder / "tensorboard" / name
        self._name = name
        self._steps = steps
        self._done = self._step = 0  # steps when it began, and now
        self._rows = 0  # written by this stage
        self._order = 0  # checksum of the numbers of all rows trained on so far, in their order
        self._tokens = 0
        self._trial: Trial | None = None

    def state(self) -> dict[str, Any]:
        """What a resumed run needs to go on writing the same; all rows before are on the disk then."""
        os.fsync(self._file.fileno())
        return {"judged": self.judged, "step": self._step, "rows": self._rows, "order": self._order}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there; before `with`."""
        self.judged, self._step, self._rows, self._order = (state[key] for key in ("judged", "step", "rows", "order"))
        self._done = self._step

    def __enter__(self) -> "RunLog":
        if not is_first():
            return self
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._path.with_suffix(".writing")
        aside.write_text("".join(row + "\n" for row in self._kept_rows()), encoding="utf-8")
        aside.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(self._board_folder), purge_step=self._done)
        on_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=self._steps, initial=self._done, desc=self._name, unit="step", disable=not on_terminal, ncols=110
        )
        self._start = self._last_line = time.monotonic()
        self._trial = watching()
        if self._trial:
            self._trial.plan(self._steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if is_first():
            self._bar.close()
            self._file.close()
            self._board.close()

    def _kept_rows(self) -> list[str]:
        """Those of other stages, and of this one as many as its checkpoint knows of."""
        rows = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        kept, own = [], 0
        for row in rows:
            own += self._is_own(row)
            if not self._is_own(row) or own <= self._rows:
                kept.append(row)
        return kept

    def _is_own(self, row: str) -> bool:
        try:
            return bool(json.loads(row)["stage"] == self._name)
        except json.JSONDecodeError:  # the process was killed in the middle of a line
            return True

    def step(self, step: int, rows: npt.NDArray[np.int64], tokens: int, shown: dict[str, float]) -> None:
        """Move the bar to `step` (1-based); it was trained on `rows`, which hold `tokens`; `shown` stands behind it."""
        if self._trial:
            self._trial.step()
        self._step = step
        self._order = zlib.crc32(rows.tobytes(), self._order)
        self._tokens += tokens
        if not is_first():
            return
        self._bar.update(step - self._bar.n)
        seconds = time.monotonic() - self._start
        speed = self._tokens / max(seconds, 1e-9)
        words = ", ".join(f"{key} {value:.4g}" for key, value in shown.items())
        self._bar.set_postfix_str(f"{words}, {speed:,.0f} tokens/s", refresh=False)
        if self._bar.disable and time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            left = seconds / max(1, step - self._done) * (self._steps - step)
            log.info(
                "%s %d/%d: %s, %.0f tokens/s, %.0f min left", self._name, step, self._steps, words, speed, left / 60
            )

    def record(self, step: int, values: dict[str, float]) -> None:
        """One row of metrics.jsonl (where JSON has no NaN or infinity, it says null) and TensorBoard.

        Each row also has the checksum of which rows were trained on so far, so two runs can be compared.
        """
        if not is_first():
            return
        rounded = {key: round(value, 6) if math.isfinite(value) else None for key, value in values.items()}
        row = {"stage": self._name, "step": step} | rounded | {"row_order": f"{self._order:08x}"}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self._rows += 1
        for key, value in values.items():
            self._board.add_scalar(key, value, step)

    def record_judged(self, step: int, scores: dict[str, float]) -> None:
        """The row of an evaluation, which is then no longer owed."""
        self.record(step, scores)
        self.judged = step
        if self._trial:
            self._trial.judged()
