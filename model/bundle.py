"""The bundle: one folder that carries everything from training to serving (docs/bundle.md lists its files).

Loading checks before it trusts: format version, a checksum and size for every file, the labels, and that the
tokenizer in the folder turns text into the ids that the network was trained on. It runs no code from the folder and
reads nothing outside it.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lengnuan.model.errors import BundleRefused
from lengnuan.model.tokenizer import Tokenizer

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
WEIGHTS = "weights.safetensors"
GOLDEN = "golden.json"
REFERENCE = "reference.json"
REQUIRED = (MODEL, TOKENIZER, GOLDEN)
DEFAULT_BUNDLE = Path(__file__).parent / "bundles" / "default"

WeightType = Literal["float32", "float16", "int8"]  # as stored, whatever the arithmetic is
ReducedType = Literal["bfloat16", "float16"]
ComputeType = Literal["float32", "bfloat16", "float16"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileEntry(_Part):
    """What a file must be."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]


class Tensor(_Part):
    """One input or output of the graph; a string in `shape` names an axis of any size."""

    name: str
    type: Literal["int64", "bool", "float32"]
    shape: tuple[str | int, ...]


class Reduced(_Part):
    """What cheaper arithmetic does to this network's answers, measured on its dev texts in several batch shapes."""

    tolerance: Annotated[float, Field(gt=0.0, description="how far a logit may be from the float32 one")]
    largest_difference: Annotated[float, Field(ge=0.0, description="of a logit, as measured")]
    spread: Annotated[float, Field(ge=0.0, description="largest difference of a logit between two of those shapes")]
    flipped_share: Annotated[float, Field(ge=0.0, le=1.0, description="of the texts, those whose label is another")]
    texts: Annotated[int, Field(ge=1)]
    runtime: str
    processor: str


class Precision(_Part):
    """How numbers are kept, and how far a logit may be from the recorded one."""

    weights: WeightType
    compute: Literal["float32"] = "float32"
    tolerance: Annotated[float, Field(gt=0.0)] = 1e-4
    reduced: dict[ReducedType, Reduced] = {}

    def states(self, compute: ComputeType) -> bool:
        """True when it is known what this arithmetic does to the answers."""
        return compute == "float32" or compute in self.reduced

    def bound(self, compute: ComputeType) -> float:
        """How far a logit may be from the recorded one with an arithmetic that it `states`; `KeyError` for others."""
        return self.tolerance if compute == "float32" else self.reduced[compute].tolerance


class Manifest(_Part):
    """Everything about a model but its files' contents. docs/bundle.md explains each field."""

    format_version: int = FORMAT_VERSION
    name: str
    created: str
    task: str
    problem_type: Literal["single_label"] = "single_label"
    labels: tuple[str, ...]
    display_names: dict[str, str] = {}
    max_tokens: Annotated[int, Field(ge=1)]
    truncation: Literal["head_tail"] = "head_tail"
    fingerprint: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    abstain_threshold: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    precision: Precision
    encoder: dict[str, Any]
    scores: dict[str, Any] = {}
    data: dict[str, Any] = {}
    code_version: str
    files: dict[str, FileEntry] = {}

    @model_validator(mode="after")
    def _check_labels(self) -> "Manifest":
        problem = label_problem(self.labels)
        if problem:
            raise ValueError(problem)
        outputs = [tensor.shape[-1] for tensor in self.outputs if tensor.name == "logits"]
        if outputs != [len(self.labels)]:
            raise ValueError(f"{len(self.labels)} labels, but the graph's output `logits` has width {outputs}")
        return self


def label_problem(labels: Sequence[str]) -> str | None:
    """Why these can't be the names of the classes, in order; None when they can."""
    if len(labels) < 2 or len(set(labels)) != len(labels):
        return f"labels must be at least two different names, not {list(labels)}"
    nameless = [label for label in labels if not label.strip() or re.fullmatch(r"LABEL_\d+", label)]
    return f"labels need real names, not {nameless}" if nameless else None


@dataclass(frozen=True)
class GoldenAnswer:
    """A text with the ids and logits that it had when the bundle was made."""

    text: str
    ids: tuple[int, ...]
    logits: tuple[float, ...]


@dataclass(frozen=True)
class Bundle:
    """A loaded and checked bundle. `version` changes with any byte of it."""

    path: Path
    manifest: Manifest
    tokenizer: Tokenizer
    golden: tuple[GoldenAnswer, ...]
    version: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the outputs."""
        return self.manifest.labels

    @property
    def model_file(self) -> Path:
        """The ONNX graph."""
        return self.path / MODEL

    @classmethod
    def load(cls, path: Path) -> "Bundle":
        """Read and check the folder.

        Raises:
            BundleRefused: no bundle there, another format version, a missing or changed file, bad labels,
                or a tokenizer that is not the one the network was trained with; names the file and both values.
        """
        content, version = _read_manifest(path)
        manifest = _parse_manifest(path, content)
        for name, entry in manifest.files.items():
            _check_file(path, name, entry)
        try:
            tokenizer = Tokenizer.from_file(path / TOKENIZER)
        except ValueError as error:
            raise BundleRefused(str(error)) from error
        golden = _read_golden(path / GOLDEN, manifest)
        if tokenizer.fingerprint() != manifest.fingerprint:
            raise BundleRefused(
                f"{path / TOKENIZER}: text-pipeline fingerprint {tokenizer.fingerprint()}, "
                f"but the network was trained with {manifest.fingerprint}"
            )
        return cls(path, manifest, tokenizer, golden, version)

    @staticmethod
    def write(path: Path, manifest: Manifest) -> Manifest:
        """Seal a folder: list every file in it with its checksum, and write the manifest last.

        Raises:
            BundleRefused: one of the required files is not there yet.
        """
        missing = [name for name in REQUIRED if not (path / name).is_file()]
        if missing:
            raise BundleRefused(f"{path}: {missing[0]} must be written before the manifest")
        names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        files = {name: _entry(path / name) for name in names if name != MANIFEST}
        sealed = manifest.model_copy(update={"files": files})
        aside = path / f"{MANIFEST}.writing"
        aside.write_text(json.dumps(sealed.model_dump(mode="json"), ensure_ascii=False, indent=2) + "\n", "utf-8")
        os.replace(aside, path / MANIFEST)
        return sealed


def version_at(path: Path) -> str:
    """The version that a folder's manifest makes, whatever the other files are; `OSError` without one."""
    return _version((path / MANIFEST).read_bytes())


def _version(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:12]


def _read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    file = path / MANIFEST
    try:
        data = file.read_bytes()
        content = json.loads(data)
    except FileNotFoundError as error:
        raise BundleRefused(f"{path}: no {MANIFEST}: not a bundle, or one whose writing was not finished") from error
    except (OSError, ValueError) as error:
        raise BundleRefused(f"{file}: {error}") from error
    found = content.get("format_version") if isinstance(content, dict) else None
    if found != FORMAT_VERSION:
        raise BundleRefused(f"{file}: format version {found}, this release reads {FORMAT_VERSION}")
    return content, _version(data)


def _parse_manifest(path: Path, content: dict[str, Any]) -> Manifest:
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        problems = (": ".join([*map(str, e["loc"]), e["msg"].removeprefix("Value error, ")]) for e in error.errors())
        raise BundleRefused(f"{path / MANIFEST}: {'; '.join(problems)}") from error
    missing = [name for name in REQUIRED if name not in manifest.files]
    if missing:
        raise BundleRefused(f"{path / MANIFEST}: lists no {missing[0]}")
    return manifest


def _read_golden(file: Path, manifest: Manifest) -> tuple[GoldenAnswer, ...]:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        golden = tuple(GoldenAnswer(row["text"], tuple(row["ids"]), tuple(row["logits"])) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise BundleRefused(f"{file}: not a list of text, ids and logits: {error!r}") from error
    if not golden:
        raise BundleRefused(f"{file}: holds 0 answers, at least 1 is needed to check the network")
    for index, answer in enumerate(golden):
        if len(answer.logits) != len(manifest.labels):
            raise BundleRefused(
                f"{file}: answer {index} has {len(answer.logits)} logits for {len(manifest.labels)} labels"
            )
    return golden


def _check_file(path: Path, name: str, entry: FileEntry) -> None:
    file = path / name
    if not file.resolve().is_relative_to(path.resolve()):
        raise BundleRefused(f"{path / MANIFEST}: {name!r} lies outside the bundle")
    try:
        found = _entry(file)
    except OSError as error:
        raise BundleRefused(f"{file}: listed in the manifest, but {error.strerror}") from error
    if found.size != entry.size:
        raise BundleRefused(f"{file}: {found.size} bytes, the manifest says {entry.size}")
    if found.sha256 != entry.sha256:
        raise BundleRefused(f"{file}: sha256 {found.sha256}, the manifest says {entry.sha256}")


def _entry(file: Path) -> FileEntry:
    with file.open("rb") as stream:
        return FileEntry(sha256=hashlib.file_digest(stream, "sha256").hexdigest(), size=file.stat().st_size)
