"""What a request spends its time on. Noted only where somebody has asked for it, as `Tracing` does."""

from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stage:
    """One part of a request, from `began` to `ended` (`time.monotonic()`), with the numbers worth telling; no text."""

    name: str
    began: float
    ended: float
    numbers: dict[str, int] = field(default_factory=dict)


# Of the request that the code at hand works for.
noted_stages: ContextVar[list[Stage] | None] = ContextVar("noted_stages", default=None)


def noting() -> bool:
    """Whether anybody wants to know."""
    return noted_stages.get() is not None


def note(name: str, began: float, seconds: float, **numbers: int) -> None:
    """Note a stage that is over; see `Stage`."""
    stages = noted_stages.get()
    if stages is not None:
        stages.append(Stage(name, began, began + seconds, numbers))


def note_run(ended: float, queue_s: float, infer_s: float, rows: int) -> None:
    """Note what the batcher has done until `ended` (`time.monotonic()`), if there was anything to do."""
    if rows and noting():
        note("queue", ended - infer_s - queue_s, queue_s, rows=rows)
        note("infer", ended - infer_s, infer_s, rows=rows)
