"""One TOML file and `--set a.b=c`, checked in full before anything starts; an unknown key is an error."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lengnuan.model.bundle import WeightType
from lengnuan.model.encoder import EncoderConfig
from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_text

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Address = Annotated[str, Field(pattern="^s3://")]
Settings = TypeVar("Settings", bound=BaseModel)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(_Section):
    """Where the labelled rows are. Paths are relative to `root`; the keys of the tables name the sources."""

    root: Address | Path = Path()  # a folder, or s3://bucket/folder: docs/data.md
    train: dict[str, Path] = {}
    dev: dict[str, Path] = {}
    test: dict[str, Path] = {}
    text_column: str = "text"
    label_column: str = "label"
    domain_column: str = ""  # a row's domain is its source where this column is empty or missing
    columns: tuple[str, ...] = ()  # names of the columns, for TSV and CSV files without a header line
    dev_share: Share = 0.1  # split off train by hash of the text where `dev` is empty
    test_share: Share = 0.1  # likewise for `test`
    seed: int | None = None  # of these splits and of [augment]; unset: the run's
    drop_leaked: bool = True  # drop training rows whose text is also in dev or test; False keeps published splits
    max_rejected_share: Share = 0.05  # more rejected lines than this and training refuses


Concern = Literal["leaked", "conflicting", "duplicate", "shortcut", "label_shift"]


class GateConfig(_Section):
    """What training data may have of what makes scores lie (docs/data.md); past a limit and training refuses."""

    max_leaked_share: Share = 0.02  # of the rows of dev or test whose text, or a near copy, is trained on
    max_conflicting_share: Share = 0.02  # of the rows in the train files whose text has another label elsewhere in them
    max_duplicate_share: Share = 0.3  # of the rows in the train files that repeat an earlier one
    max_shortcut_share: Share = 0.2  # of the rows whose label an emoticon, tag or sign gives away
    max_label_shift: Share = 0.3  # total variation distance between the labels of train and of dev or test
    acknowledged: tuple[Concern, ...] = ()  # past these limits it goes on, and the report says so

    def limit(self, concern: Concern) -> float:
        """The limit of that name."""
        name = "max_label_shift" if concern == "label_shift" else f"max_{concern}_share"
        return float(getattr(self, name))


class AugmentConfig(_Section):
    """Synthetic training rows for the classes (negative, positive); see `training/augment.py`. Off by default."""

    rows: Annotated[int, Field(ge=0)] = 0  # sentences from templates
    noise_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0  # of the real training rows, copied with noise
    nonsense: Annotated[int, Field(ge=0)] = 0  # random characters, no label more likely than another; for any classes


class TokenizerConfig(_Section):
    """Learning the sub-words."""

    pieces: Positive = 8000  # of two characters or more
    max_piece_length: Positive = 6
    min_count: Positive = 5
    every_character: bool = True  # all CJK characters and common signs; False: those seen `min_count` times, and ASCII


class ModelConfig(_Section):
    """Shape of the encoder; see `EncoderConfig`. With `start_from` what is not given is as it is there."""

    max_tokens: Annotated[int, Field(ge=4)] = 256
    width: Positive = 256
    layers: Positive = 4
    heads: Positive = 4
    feed_forward_width: Positive = 1024
    dropout: Share = 0.1
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    norm: Literal["pre", "post"] = "pre"
    norm_epsilon: Annotated[float, Field(gt=0.0)] = 1e-5
    activation: Literal["gelu", "relu"] = "gelu"
    residual: bool = True

    @model_validator(mode="after")
    def _builds(self) -> Self:
        """A shape that no network can have (width not a multiple of heads) is refused before anything starts."""
        self.encoder(vocab_size=1)
        return self

    def encoder(self, vocab_size: int) -> EncoderConfig:
        """The network's own config for a vocabulary of that size."""
        return EncoderConfig(vocab_size=vocab_size, **self.model_dump())


class OptimiserConfig(_Section):
    """AdamW, linear warmup, then decay to zero."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-4
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    beta2: Share = 0.98
    warmup_share: Share = 0.1  # of all steps
    decay: Literal["cosine", "linear", "none"] = "cosine"
    clip_norm: Annotated[float, Field(gt=0.0)] = 1.0
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # each layer further down learns at this much less


class PretrainConfig(_Section):
    """Masked language modelling. `corpus`: files of text, one a line or in `text_column`; empty = skip it."""

    corpus: tuple[Path, ...] = ()
    epochs: Positive = 10
    max_tokens: Positive = 128
    batch_tokens: Positive = 8192
    mask_share: Share = 0.3  # Wettig et al. 2023 (arXiv:2202.08005): more than BERT's 0.15 pays
    whole_words: bool = True  # hide jieba's words, not single tokens
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=1e-3)


class FitConfig(_Section):
    """Supervised training."""

    epochs: Annotated[float, Field(gt=0.0)] = 4  # 0.5: half of the rows, once
    min_steps: Positive = 300  # few rows get more epochs, up to this many steps
    batch_tokens: Positive = 4096
    accumulate: Positive = 1  # batches that make one step together, exactly as one large batch would
    class_weight: Literal["none", "balanced", "effective"] | tuple[Annotated[float, Field(gt=0.0)], ...] = "none"
    focal_gamma: Annotated[float, Field(ge=0.0)] = 0.0  # above 0 rows that are answered well count less; often 2
    label_smoothing: Share = 0.05
    token_dropout: Share = 0.0  # of the tokens, hidden behind the mask id while training
    dropout_samples: Positive = 1  # dropout masks before the head a row is answered with (Inoue 2019, arXiv:1905.09788)
    r_drop: Annotated[float, Field(ge=0.0)] = 0.0  # weight of the difference between two passes; doubles the time
    fgm_epsilon: Annotated[float, Field(ge=0.0)] = 0.0  # how far the embeddings are moved; doubles the time
    fgm_parameter: str = "embeddings.tokens"  # what is moved: parameters with this in their name
    ema_decay: Share = 0.999
    evaluations_per_epoch: Positive = 2  # and fewer when `min_steps` adds epochs
    patience: Positive = 6  # evaluations without a better dev score before it stops
    allow_collapsed: bool = False  # export weights that are no better than guessing
    metric: Literal["accuracy", "macro_f1"] = "accuracy"  # averaged over the dev sources
    optimiser: OptimiserConfig = OptimiserConfig()


class DistillConfig(_Section):
    """Learning from larger models; without teachers there is none of it."""

    teachers: tuple[Path, ...] = ()  # run folders or bundles of trained classifiers with the same labels
    texts: tuple[Path, ...] = ()  # further texts, without labels, for the teachers to judge
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.7  # of the teachers' belief; the rest is the label's
    temperature: Annotated[float, Field(gt=0.0)] = 1.0  # above 1 softens each teacher's belief
    ngram_share: Share = 0.0  # of the n-gram referee in that belief
    calibrate: bool = False  # beliefs as sure as they are right on dev, domain by domain (`training/doubt.py`)
    plain_student: bool = True  # also train a student without teachers; the better one is kept


class ExportConfig(_Section):
    """What the bundle holds."""

    task: str = "sentiment"
    weight_type: WeightType = "float32"  # as stored; int8 with a scale a row; the arithmetic is float32 with all
    include_weights: bool = True  # weights.safetensors: those of the graph, for other programs
    abstain_accuracy: Annotated[float, Field(gt=0.0, le=1.0)] | None = None  # wanted on dev for what is not abstained


class TrackingConfig(_Section):
    """Where a run is shown besides its folder. Nothing leaves the machine unless this names a server."""

    mlflow: str = ""  # address of an MLflow server; its user and password belong into its own variables
    experiment: str = "lengnuan"

    @model_validator(mode="after")
    def _no_password(self) -> Self:
        """The config is written into run folders."""
        if "@" in urlsplit(self.mlflow).netloc:
            raise ValueError(
                "mlflow: no user or password in the address: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return self


class TrainConfig(_Section):
    """Everything a run depends on; saved in the run folder as it was resolved."""

    name: str
    seed: int = 1
    threads: Annotated[int, Field(ge=0)] = 0  # 0: as many as this process may use
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    labels: dict[str, tuple[str, ...]] = {}  # name = spellings in the files, in the order of the outputs
    display_names: dict[str, str] = {}
    sources: dict[str, str] = {}  # what each source is, for the model card
    licences: dict[str, str] = {}  # of those sources; the card says "not stated" of the others
    start_from: Path | None = None  # a run folder, bundle, imported encoder, or "default", "tiny": the embedded bundles
    average: tuple[Path, ...] = ()  # run folders: the mean of their best weights, and nothing is trained
    data: DataConfig
    gate: GateConfig = GateConfig()
    augment: AugmentConfig = AugmentConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    pretrain: PretrainConfig = PretrainConfig()
    distill: DistillConfig = DistillConfig()
    fit: FitConfig = FitConfig()
    export: ExportConfig = ExportConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """What two sections say must go together."""
        if self.data.dev_share + self.data.test_share >= 1.0:
            raise ValueError("data.dev_share and data.test_share leave nothing to train on")
        unknown = self.licences.keys() - self.sources.keys() - self.data.train.keys()
        if unknown:
            raise ValueError(f"[licences]: {sorted(unknown)} are named neither in [sources] nor in [data.train]")
        if not self.model.dropout and (self.fit.r_drop or self.fit.dropout_samples > 1):
            raise ValueError(
                "fit.r_drop and fit.dropout_samples do nothing without model.dropout: set it, or drop them"
            )
        if self.pretrain.corpus and self.pretrain.max_tokens > self.model.max_tokens:
            raise ValueError(
                f"pretrain.max_tokens {self.pretrain.max_tokens} is more than model.max_tokens {self.model.max_tokens}"
            )
        return self

    @property
    def data_seed(self) -> int:
        """What decides the rows, so that runs with other seeds can have the same."""
        return self.seed if self.data.seed is None else self.data.seed

    def write(self, path: Path) -> None:
        """Save as JSON, every default written out."""
        write_text(path, json.dumps(self.model_dump(mode="json"), ensure_ascii=False, indent=2) + "\n")


def load_config(path: Path, changes: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML config and apply `section.key=value` changes (value in TOML syntax, or a bare string).

    A config with `base = "other.toml"` (beside it) holds only what differs from that one.

    Raises:
        UsageError: unreadable file, malformed change, unknown key or bad value; the message names the key.
    """
    return load_settings(TrainConfig, path, changes)


def load_settings(kind: type[Settings], path: Path | None, changes: Sequence[str] = ()) -> Settings:
    """Like `load_config`, for any kind of settings; without a file the defaults and the changes are all there is."""
    content = _read_toml(path) if path else {}
    for change in changes:
        _apply(content, change)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UsageError(f"{f'config {path}' if path else '--set'}: {problems}") from error


def _read_toml(path: Path, readers: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path in readers:
        raise UsageError(f"config {path} is its own base")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"config {path}: {error}") from error
    base = content.pop("base", None)
    return content if base is None else _merged(_read_toml(path.parent / str(base), (*readers, path)), content)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `changes`, section by section."""
    both = {key: _merged(base[key], value) for key, value in changes.items()
            if isinstance(value, dict) and isinstance(base.get(key), dict)}  # fmt: skip
    return {**base, **changes, **both}


def _apply(content: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {change!r}: write section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, last = key.split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise UsageError(f"--set {change!r}: {section} is not a section")
    content[last] = value
