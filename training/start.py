"""Where training begins when it does not begin at random: another run, a bundle, or an imported encoder.

A run folder gives its best weights as they were trained, a bundle as they are served: rounded, if `weight_type` says
so.

An encoder folder, which `lengnuan-train import` writes, holds `tokenizer.json`, `encoder.safetensors` (float32, by our
parameter names) and `encoder.json` (the shape, where it came from, its licence).

An embedded bundle goes by its name, `default` or `tiny`, wherever Lengnuan is installed, unless a folder is called so.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lengnuan.model.bundle import DEFAULT_BUNDLE, MANIFEST, TOKENIZER, WEIGHTS, Bundle
from lengnuan.model.encoder import Encoder, EncoderConfig
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.config import TrainConfig
from lengnuan.training.errors import UsageError
from lengnuan.training.export import graph_weights
from lengnuan.training.files import write_tensors
from lengnuan.training.judge import BEST

ENCODER = "encoder.safetensors"
ABOUT = "encoder.json"
START = "start.safetensors"  # in a run folder: what the run began with
_POSITIONS = "embeddings.positions.weight"
_NOTHING = "holds no trained run, no bundle and no imported encoder"


def load_encoder(encoder: Encoder, file: Path) -> None:
    """Put the weights of `file` into `encoder`; positions beyond the encoder's are left out.

    Raises:
        UsageError: a parameter is missing, unknown, or of another shape; names the first of them.
    """
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{file}: {error}") from error
    if _POSITIONS in weights:
        weights[_POSITIONS] = weights[_POSITIONS][: encoder.config.max_tokens]
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise UsageError(f"{file} does not fit [model]: {error}") from error


def start_from(source: Path, run_folder: Path) -> None:
    """Put the tokenizer and the encoder of `source` into a run folder.

    Raises:
        UsageError: no run, bundle or encoder folder, or a bundle without weights whose graph is not one of ours.
        BundleRefused: the bundle is damaged.
    """
    source = _located(source)
    read = _read_bundle if (source / MANIFEST).exists() else _read_run if (source / BEST).exists() else _read_encoder
    weights, tokenizer = read(source)
    write_tensors(run_folder / START, weights)
    tokenizer.to_file(run_folder / TOKENIZER)


def shaped(config: TrainConfig) -> TrainConfig:
    """The config in which what `[model]` leaves out is as it is in `start_from`, without which nothing is changed.

    Raises:
        UsageError: `start_from` holds nothing to start from, or `[model]` and other settings don't go with its shape.
        BundleRefused: the bundle is damaged.
    """
    if config.start_from is None:
        return config
    given = config.model.model_dump(exclude_unset=True)
    content = config.model_dump() | {"model": _shape(_located(config.start_from)) | given}
    try:
        return TrainConfig.model_validate(content)
    except ValidationError as error:
        reasons = "; ".join(found["msg"] for found in error.errors())
        raise UsageError(f"with the shape of start_from {config.start_from}: {reasons}") from error


def _located(source: Path) -> Path:
    embedded = DEFAULT_BUNDLE.parent / source
    named = len(source.parts) == 1 and not source.exists() and (embedded / MANIFEST).exists()
    return embedded if named else source


def _shape(source: Path) -> dict[str, Any]:
    """The settings of `[model]` with which it was trained, as far as it says."""
    if (source / MANIFEST).exists():
        shape = Bundle.load(source).manifest.encoder
        return {key: value for key, value in shape.items() if key != "vocab_size"}
    if (source / BEST).exists():
        found: dict[str, Any] = json.loads((source / "config.json").read_text(encoding="utf-8"))["model"]
        return found
    if not (source / ABOUT).exists():
        raise UsageError(f"start_from: {source} {_NOTHING}")
    return dict(about(source).get("model", {}))


def _read_bundle(folder: Path) -> tuple[dict[str, Tensor], Tokenizer]:
    bundle = Bundle.load(folder)
    whole = WEIGHTS in bundle.manifest.files
    weights = load_file(folder / WEIGHTS) if whole else graph_weights(bundle.model_file)
    encoder = _of_encoder(weights)
    if not whole and not _has_all(encoder, bundle.manifest.encoder):
        raise UsageError(
            f"start_from: {folder} holds no {WEIGHTS}, and its graph, of another program, does not tell its weights "
            "apart: start from a bundle that was exported with include_weights = true"
        )
    return encoder, bundle.tokenizer


def _of_encoder(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("encoder."): value for name, value in weights.items() if name.startswith("encoder.")}


def _has_all(weights: dict[str, Tensor], shape: dict[str, Any]) -> bool:
    """Whether these are the parameters of an encoder of that shape."""
    return bool(shape) and Encoder(EncoderConfig(**shape)).state_dict().keys() == weights.keys()


def _read_run(folder: Path) -> tuple[dict[str, Tensor], Tokenizer]:
    try:
        return _of_encoder(load_file(folder / BEST)), Tokenizer.from_file(folder / TOKENIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"start_from: {error}") from error


def _read_encoder(folder: Path) -> tuple[dict[str, Tensor], Tokenizer]:
    if not (folder / ABOUT).exists():
        raise UsageError(f"start_from: {folder} {_NOTHING}")
    try:
        return load_file(folder / ENCODER), Tokenizer.from_file(folder / TOKENIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"start_from: {error}") from error


def is_ours(source: Path) -> bool:
    """Whether a folder is a bundle or a run with trained weights."""
    source = _located(source)
    return (source / MANIFEST).exists() or (source / BEST).exists()


def read_ours(source: Path) -> tuple[dict[str, Tensor], Tokenizer, dict[str, Any]]:
    """The encoder of a bundle or a run: weights, tokenizer, and the settings of `[model]`.

    Raises:
        UsageError, BundleRefused: as `start_from`.
    """
    source = _located(source)
    read = _read_bundle if (source / MANIFEST).exists() else _read_run
    return *read(source), _shape(source)


def about(source: Path) -> dict[str, Any]:
    """What is recorded of an imported encoder: origin, licence, shape, layers; {} for a bundle."""
    file = source / ABOUT
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found
