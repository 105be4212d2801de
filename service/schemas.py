"""What goes over the wire."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lengnuan.model.bundle import ComputeType, Reduced, ReducedType, WeightType
from lengnuan.service.batching import Priority
from lengnuan.service.bodies import Body
from lengnuan.service.errors import ErrorDetail

OnLong = Literal["truncate", "error", "window"]
# Far above every limit of the service, and short enough to be repeated in an error.
LARGEST = 2**31 - 1

# The fields that requests share. Without fail_fast, each element that is no text would make an error of its own:
# gigabytes from one body.
Texts = Annotated[str | Annotated[list[str], Field(fail_fast=True)], Field(description="one text, or a list of them")]
ModelName = Annotated[str | None, Field(description="a name or alias from /v1/models; without it, the default")]
TopK = Annotated[
    int | None, Field(ge=1, le=LARGEST, description="add `top`, the k most probable labels (all, if there are fewer)")
]
ReturnLogits = Annotated[bool, Field(description="add `logits`, in the order of the labels")]
OnLongField = Annotated[
    OnLong,
    Field(description="a text that is too long for the model: keep head and tail, refuse it, or read it in windows"),
]
TimeoutMs = Annotated[
    int | None, Field(ge=1, le=LARGEST, description="give up after this long; at most the service's own limit")
]
PriorityField = Annotated[
    Priority | None, Field(description="goes before the header X-Priority; without both: interactive")
]
Partial = Annotated[bool, Field(description="answer 200 with an error in place of each text that failed")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClassifyRequest(Body):
    """Texts to classify. A list is always a batch of independent texts."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"input": ["这部电影虽然前半段节奏很慢，但结尾非常精彩", "太难看了"]}},
    )

    input: Texts
    model: ModelName = None
    top_k: TopK = None
    return_logits: ReturnLogits = False
    on_long: OnLongField = "truncate"
    timeout_ms: TimeoutMs = None
    partial: Partial = False
    priority: PriorityField = None

    @property
    def texts(self) -> list[str]:
        """The input as a list."""
        return [self.input] if isinstance(self.input, str) else self.input


class StreamLine(Body):
    """One line of a stream."""

    input: Annotated[str, Field(description="the text")]


class StreamOptions(Body):
    """What holds for every line of a stream; given in the query."""

    model_config = ConfigDict(strict=False)  # a query has nothing but strings

    model: ModelName = None
    top_k: TopK = None
    return_logits: ReturnLogits = False
    on_long: OnLongField = "truncate"
    priority: Annotated[Priority | None, Field(description="goes before the header X-Priority; without both: bulk")] = (
        None
    )


class LabelProbability(_Part):
    """One of the most probable labels."""

    label: str
    probability: float


class Classification(_Part):
    """The answer for one text. `probs` is in the order of the model's labels, whatever `top_k` says."""

    index: Annotated[int, Field(description="place of the text in `input`")]
    label: Annotated[str, Field(description="the most probable class, also when `abstained`")]
    confidence: Annotated[float, Field(description="its calibrated probability")]
    probs: list[float]
    num_classes: int
    truncated: Annotated[bool, Field(description="the model read the head and the tail only")]
    tokens: Annotated[int, Field(description="length of the whole text")]
    tokens_used: Annotated[int, Field(description="length of what the model read")]
    abstained: Annotated[bool, Field(description="the confidence is below the model's threshold: take it as uncertain")]
    windows: Annotated[int | None, Field(description="with on_long=window: runs of the model, averaged")] = None
    logits: list[float] | None = None
    top: list[LabelProbability] | None = None


class ItemError(_Part):
    """Stands in place of the answer for a text that failed, in a request with `partial`."""

    index: int
    error: ErrorDetail


class Usage(_Part):
    """Tokens that the model read."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: Annotated[Literal[0], Field(description="none; typed clients of other servers need it")]


class TimingsMs(_Part):
    """Where the time went, in milliseconds. `queue` and `infer` are those of the text that was answered last."""

    tokenize: float
    queue: float
    infer: float
    total: float


class ClassifyReply(_Part):
    """One entry of `data` for each text, in the order of `input`."""

    id: Annotated[str, Field(description="the request id")]
    object: Literal["list"]
    created: Annotated[int, Field(description="seconds since 1970")]
    model: str
    model_version: Annotated[str, Field(description="changes with any byte of the bundle")]
    data: list[Classification | ItemError]
    usage: Usage
    timings: TimingsMs


class ServedLimits(_Part):
    """What this service refuses, cuts or groups by."""

    max_tokens: int
    max_chars: int
    max_texts: int
    max_body_bytes: int
    max_batch_rows: int
    max_batch_tokens: int
    queue_items: Annotated[int, Field(description="of one priority, as `queue_tokens` and `queue_wait_s`")]
    queue_tokens: int
    queue_wait_s: float
    max_timeout_ms: int


class ServedPrecision(_Part):
    """How the network is kept and in which arithmetic it answers here."""

    weights: WeightType
    compute: Annotated[ComputeType, Field(description="in use")]
    tolerance: Annotated[float, Field(description="how far a logit may be from the float32 one, in this arithmetic")]
    reduced: Annotated[
        dict[ReducedType, Reduced], Field(description="what cheaper arithmetic was measured to do to the answers")
    ]


class ModelCard(_Part):
    """A served model, from its manifest and from the engine that really runs it."""

    id: str
    object: Literal["model"]
    aliases: Annotated[list[str], Field(description="other names that select it")]
    created: str
    version: str
    task: str
    problem_type: str
    activation: Literal["softmax"]
    labels: list[str]
    display_names: dict[str, str]
    limits: ServedLimits
    truncation: str
    precision: ServedPrecision
    runtime: str
    provider: str
    temperature: float
    abstain_threshold: float
    scores: dict[str, Any]
    fingerprint: Annotated[str, Field(description="of the text pipeline: which ids a text gets")]
    sha256: dict[str, str]
    code_version: Annotated[str, Field(description="of the release that trained it")]


class ModelList(_Part):
    """The models served here, the default first."""

    object: Literal["list"]
    data: list[ModelCard]


class Status(_Part):
    """A probe's answer; the status code says the same."""

    status: Literal["ok"]


class Version(_Part):
    """What is running."""

    name: Literal["lengnuan"]
    version: str
    python: str
    model: str | None
    model_version: str | None
