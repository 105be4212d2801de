"""What a run says while it works: a progress bar or plain lines, a JSONL metrics file, TensorBoard logs."""

import json
import logging
import math
import sys
import time
from pathlib import Path
from types import TracebackType

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 30.0


class RunLog:
    """Use as a context manager. A resumed run drops what an interrupted one wrote after its checkpoint.

    Args:
        folder: gets `metrics.jsonl` and `tensorboard/`.
        name: of the stage, in the bar and in every row.
        steps: how many there will be.
        done: steps already behind a resumed run.
    """

    def __init__(self, folder: Path, name: str, *, steps: int, done: int = 0) -> None:
        self._path = folder / "metrics.jsonl"
        self._board_folder = folder / "tensorboard" / name
        self._name = name
        self._steps = steps
        self._done = done
        self._tokens = 0

    def __enter__(self) -> "RunLog":
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        self._file.close()
        self._board.close()

    def _kept_rows(self) -> list[str]:
        rows = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        return [row for row in rows if not self._is_later(row)]

    def _is_later(self, row: str) -> bool:
        try:
            values = json.loads(row)
        except json.JSONDecodeError:  # the process was killed in the middle of a line
            return True
        return bool(values["stage"] == self._name and values["step"] > self._done)

    def step(self, step: int, tokens: int, shown: dict[str, float]) -> None:
        """Move the bar to `step` (1-based); `tokens` were in it; `shown` stands behind the bar."""
        self._tokens += tokens
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
        """One row of metrics.jsonl (where JSON has no NaN or infinity, it says null) and TensorBoard."""
        rounded = {key: round(value, 6) if math.isfinite(value) else None for key, value in values.items()}
        row = {"stage": self._name, "step": step} | rounded
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for key, value in values.items():
            self._board.add_scalar(key, value, step)
