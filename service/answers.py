"""What becomes of texts: the ids that the model reads, and the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lengnuan.model.cutting import Cutting
from lengnuan.model.engine import Logits
from lengnuan.model.probabilities import Prediction
from lengnuan.service.errors import Outcome, ServiceError
from lengnuan.service.schemas import OnLong

# What may become of a long text; a request of our own knows `OnLong` only.
LongRule = OnLong | Cutting


@dataclass(frozen=True)
class Encoded:
    """What the model reads of a text, in one row or in windows, and the length of the whole text in tokens."""

    rows: list[list[int]]
    tokens: int

    @property
    def tokens_used(self) -> int:
        """How many of the text's tokens are in some row."""
        return min(self.tokens, sum(map(len, self.rows)))

    @property
    def truncated(self) -> bool:
        """The model does not read all of it."""
        return self.tokens_used < self.tokens


@dataclass(frozen=True)
class Answer:
    """The answer for one text. `logits`: float32 [K], the mean over `windows`."""

    prediction: Prediction
    logits: Logits
    tokens: int
    tokens_used: int
    windows: int

    @property
    def truncated(self) -> bool:
        """The model did not read all of it."""
        return self.tokens_used < self.tokens


OnAnswers = Callable[[Sequence[str], "Sequence[Answer | ServiceError]", LongRule], None]


@dataclass(frozen=True)
class Answers:
    """One entry a text, in order, and the seconds spent; `queue_s` and `infer_s` are those of the last to finish."""

    items: list[Answer | ServiceError]
    tokenize_s: float
    queue_s: float
    infer_s: float


def outcome_of(item: Answer | ServiceError) -> Outcome:
    """How the text is counted."""
    if isinstance(item, ServiceError):
        return item.outcome
    return "truncated_ok" if item.truncated else "ok"
