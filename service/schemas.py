"""What goes over the wire, and the reading of a request body: strict, once, and without ever quoting the caller."""

import json
import re
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lengnuan.model.bundle import ComputeType, Reduced, ReducedType, WeightType
from lengnuan.model.text import has_lone_surrogate
from lengnuan.service.errors import (
    EmptyBody,
    ErrorDetail,
    InvalidJson,
    InvalidRequest,
    InvalidUnicode,
    NotUtf8,
    ServiceError,
    UnknownField,
)

OnLong = Literal["truncate", "error"]
# Far above every limit of the service, and short enough to be repeated in an error.
LARGEST = 2**31 - 1

_NAMEABLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BOM = b"\xef\xbb\xbf"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClassifyRequest(BaseModel):
    """Texts to classify. A list is always a batch of independent texts."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra={"example": {"input": ["这部电影虽然前半段节奏很慢，但结尾非常精彩", "太难看了"]}},
    )

    # Without fail_fast, each element that is no text would make an error of its own: gigabytes from one body.
    input: Annotated[
        str | Annotated[list[str], Field(fail_fast=True)], Field(description="one text, or a list of them")
    ]
    model: Annotated[str | None, Field(description="name of the served model; any other name is refused")] = None
    top_k: Annotated[
        int | None,
        Field(ge=1, le=LARGEST, description="add `top`, the k most probable labels (all, if there are fewer)"),
    ] = None
    return_logits: Annotated[bool, Field(description="add `logits`, in the order of the labels")] = False
    on_long: Annotated[OnLong, Field(description="cut a text that the model can't read whole, or refuse it")] = (
        "truncate"
    )
    timeout_ms: Annotated[
        int | None,
        Field(ge=1, le=LARGEST, description="give up after this long; at most the service's own limit"),
    ] = None
    partial: Annotated[bool, Field(description="answer 200 with an error in place of each text that failed")] = False

    @classmethod
    def from_body(cls, body: bytes) -> Self:
        """Read a body.

        Raises:
            ServiceError: 400 for what is not JSON in UTF-8, 422 for JSON that is not such a request.
        """
        content = _read_json(body)
        if not isinstance(content, dict):
            raise InvalidRequest("the body must be a JSON object with the field input")
        # Before anything else, since pydantic makes an error of each of them.
        unknown = next((name for name in content if name not in cls.model_fields), None)
        if unknown is not None:
            raise _unknown_field(unknown)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise _refusal(error) from None

    @property
    def texts(self) -> list[str]:
        """The input as a list."""
        return [self.input] if isinstance(self.input, str) else self.input


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
    queue_items: int
    queue_tokens: int
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
    """The served model, from its manifest and from the engine that really runs it."""

    id: str
    object: Literal["model"]
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
    """The models served here: one."""

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


def _read_json(body: bytes) -> Any:
    if not body:
        raise EmptyBody('the request has no body; it needs JSON such as {"input": "..."}')
    if body.startswith(_BOM):
        raise NotUtf8("the body starts with a byte order mark; send UTF-8 without one")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8(f"the body must be UTF-8; byte {error.start} is not (is it GBK or UTF-16?)") from None
    if "\0" in text:
        raise NotUtf8("the body must be UTF-8; its zero bytes look like UTF-16")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise InvalidJson("the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidJson(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError:  # an integer with thousands of digits
        raise InvalidJson("the body has a number with too many digits") from None


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidJson(f"the body has {name}, which is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _unknown_field(name: str) -> ServiceError:
    if has_lone_surrogate(name):
        return InvalidUnicode("the name of a field holds half of a surrogate pair")
    param = name if _NAMEABLE.fullmatch(name) else None
    return UnknownField(f"unknown field {param or '(its name is not repeated here)'}", param=param)


def _refusal(error: ValidationError) -> ServiceError:
    """The one problem worth telling: the deepest, since a union reports every branch that it tried."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    problem = max(problems, key=lambda p: len(p["loc"]))
    name, last = str(problem["loc"][0]), problem["loc"][-1]
    if problem["type"] == "string_unicode":
        return InvalidUnicode(f"{name} holds half of a surrogate pair", param=name)
    if name == "input" and problem["type"] != "missing":
        return InvalidRequest(
            "input must be a string or a list of strings", param="input", index=last if isinstance(last, int) else None
        )
    return InvalidRequest(f"{name}: {problem['msg']}", param=name)
