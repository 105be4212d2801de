"""A local Hugging Face model folder as one of our encoders: BERT, ERNIE, RoBERTa and XLM-R with absolute positions.

The only file that knows their parameter names. Every parameter of the encoder must be there, in the shape that the
folder's config.json says, and none may be left over: an import that succeeds answers as the original does.
"""

import json
import logging
import math
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lengnuan.model.encoder import Encoder, EncoderConfig
from lengnuan.model.segmentation import CONTINUATION, WORD_MARK
from lengnuan.model.tokenizer import Kind
from lengnuan.training.errors import UsageError
from lengnuan.training.foreign import TOKENS, Foreign, Special

log = logging.getLogger(__name__)

POSITIONS = "embeddings.positions.weight"
_PREFIXES = {"bert": "bert.", "ernie": "ernie.", "roberta": "roberta.", "xlm-roberta": "roberta."}  # by model_type
_PADDED_POSITIONS = ("roberta", "xlm-roberta")  # the first position stands behind the padding's
_HEADS = ("pooler.", "cls.", "lm_head.", "classifier.", "qa_outputs.")
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
_EMBEDDINGS = {TOKENS: "embeddings.word_embeddings", POSITIONS: "embeddings.position_embeddings"}
_LAYER = {
    "attention.query_key_value": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.expand": ("intermediate.dense",),
    "feed_forward.contract": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
_NORM = {"gamma": "LayerNorm.weight", "beta": "LayerNorm.bias"}  # names that came from TensorFlow
_SPECIAL = {
    "wordpiece": ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"),
    "metaspace": ("<s>", "</s>", "<pad>", "<unk>", "<mask>"),
}


def read_huggingface(folder: Path) -> Foreign:
    """The encoder and the vocabulary in `folder`; weights become float32, heads are left out.

    Raises:
        UsageError: a file is missing or damaged, the model is of another kind, or a parameter of the encoder is
            missing, of another shape, or unknown; the message names it.
    """
    config = _read_json(folder / "config.json")
    model_type = config.get("model_type")
    if model_type not in _PREFIXES:
        raise UsageError(f"{folder}: model_type {model_type!r} is not supported, only {', '.join(_PREFIXES)}")
    vocabulary = _read_vocabulary(folder)
    checkpoint = _Checkpoint(folder, _PREFIXES[model_type])
    try:
        shape, weights = _import(config, checkpoint)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{folder / 'config.json'}: missing or wrong: {error}") from error
    checkpoint.account()
    rows = len(weights[TOKENS])
    needed = max(len(vocabulary.pieces), max(vocabulary.special.rows()) + 1)
    if rows < needed:
        raise UsageError(f"{folder}: {needed} pieces in the vocabulary, but {rows} rows in {_EMBEDDINGS[TOKENS]}")
    name = str(config.get("_name_or_path") or "")
    if not name or name.startswith(("/", ".", "~")) or "\\" in name:  # a path on somebody's disk says nothing
        name = folder.resolve().name
    return Foreign(
        f"{name} ({model_type})", _licence(folder), shape, weights,
        vocabulary.pieces, vocabulary.scores, vocabulary.kind, vocabulary.special,
    )  # fmt: skip


def _import(config: Mapping[str, Any], checkpoint: "_Checkpoint") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Our shape, and the weights by our names."""
    _refuse_other_networks(config, checkpoint.folder)
    width, positions = int(config["hidden_size"]), int(config["max_position_embeddings"])
    skipped = int(config.get("pad_token_id", 1)) + 1 if config["model_type"] in _PADDED_POSITIONS else 0
    shape = {
        "width": width, "layers": int(config["num_hidden_layers"]), "heads": int(config["num_attention_heads"]),
        "feed_forward_width": int(config["intermediate_size"]), "max_tokens": positions - skipped, "norm": "post",
        "norm_epsilon": float(config.get("layer_norm_eps", 1e-12)), "activation": config.get("hidden_act", "gelu"),
    }  # fmt: skip
    with torch.device("meta"):  # shapes without memory
        ours = Encoder(EncoderConfig(vocab_size=int(config["vocab_size"]), **shape)).state_dict()
    weights = {}
    for name, empty in ours.items():
        theirs = _their_names(name)
        part = [len(empty) // len(theirs), *empty.shape[1:]]
        if name == POSITIONS:
            part[0] = positions
        weights[name] = torch.cat([checkpoint.take(each, part) for each in theirs])
    weights[POSITIONS] = weights[POSITIONS][skipped:] + checkpoint.take(
        "embeddings.token_type_embeddings.weight", [int(config.get("type_vocab_size", 2)), width]
    )[0]  # fmt: skip
    # Every text is of token type 0, and of task 0 where there are tasks: both vectors are part of each position's.
    if config["model_type"] == "ernie" and config.get("use_task_id", False):
        tasks = [int(config.get("task_type_vocab_size", 3)), width]
        weights[POSITIONS] += checkpoint.take("embeddings.task_type_embeddings.weight", tasks)[0]
    return shape, weights


def _refuse_other_networks(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse what our network can't compute."""
    supported: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("gelu", "relu"),
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
    }
    for key, values in supported.items():
        if config.get(key, values[0]) not in values:
            raise UsageError(f"{folder}: {key} {config[key]!r} is not supported, only {' or '.join(map(str, values))}")


def _their_names(name: str) -> list[str]:
    """The parameters that are stacked to make ours."""
    place, kind = name.rsplit(".", 1)
    if name in _EMBEDDINGS:
        return [f"{_EMBEDDINGS[name]}.weight"]
    if place == "norm":
        return [f"embeddings.LayerNorm.{kind}"]
    _, layer, place = place.split(".", 2)
    return [f"encoder.layer.{layer}.{theirs}.{kind}" for theirs in _LAYER[place]]


class _Checkpoint:
    """The tensors of a folder, by their names without the model's prefix, and which of them were taken."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder = folder
        self.prefix = prefix
        self.tensors: dict[str, Tensor] = {}
        for name, value in _read_tensors(folder).items():
            modern = re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: _NORM[m.group(1)], name)
            if modern in self.tensors:
                raise UsageError(f"{folder}: both {name} and {modern}")
            self.tensors[modern] = value
        if not any(name.startswith(prefix) for name in self.tensors):
            self.prefix = ""
        self.taken: set[str] = set()

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        """One parameter, float32."""
        full = self.prefix + name
        if full not in self.tensors:
            raise UsageError(f"{self.folder}: {full} is missing")
        value = self.tensors[full]
        if list(value.shape) != list(shape):
            raise UsageError(f"{self.folder}: {full} is {list(value.shape)}, not {list(shape)} as config.json says")
        if not value.is_floating_point():
            raise UsageError(f"{self.folder}: {full} is {value.dtype}: quantised weights are not supported")
        self.taken.add(full)
        return value.float()

    def account(self) -> None:
        """Say what was left out.

        Raises:
            UsageError: a tensor that was not taken may be part of the encoder.
        """
        ignored = sorted(self.tensors.keys() - self.taken)
        for full in ignored:
            name = full.removeprefix(self.prefix)
            inside = full.startswith(self.prefix) or name.startswith((*_PREFIXES.values(), "embeddings.", "encoder."))
            if inside and not name.startswith(_HEADS) and name not in _BUFFERS:
                raise UsageError(f"{self.folder}: {full} is no part of the encoder that config.json describes")
        log.info("imported %d of %d parameters", len(self.taken), len(self.tensors))
        if ignored:
            log.info("ignored: %s", ", ".join(ignored))


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder: safetensors before .bin, one file before several."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).exists():
            return _read_tensor_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            files = _read_json(index).get("weight_map")
            if not isinstance(files, dict) or any(Path(str(file)).name != file for file in files.values()):
                raise UsageError(f"{index}: weight_map must give the file of each tensor")
            tensors: dict[str, Tensor] = {}
            for file in sorted(set(files.values())):
                tensors |= _read_tensor_file(folder / file)
            return tensors
    raise UsageError(f"{folder} has neither model.safetensors nor pytorch_model.bin")


def _read_tensor_file(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError, SafetensorError) as error:
        raise UsageError(f"{file}: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UsageError(f"{file}: not a table of tensors")
    return {str(name): value for name, value in content.items()}


@dataclass(frozen=True)
class _Vocabulary:
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    kind: Kind
    special: Special


def _read_vocabulary(folder: Path) -> _Vocabulary:
    """tokenizer.json, else vocab.txt."""
    if (folder / "tokenizer.json").exists():
        try:
            return _read_tokenizer(_read_json(folder / "tokenizer.json"), folder)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{folder / 'tokenizer.json'}: missing or wrong: {error}") from error
    try:
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError as error:
        raise UsageError(
            f"{folder} has neither tokenizer.json nor vocab.txt; transformers' fast tokenizers write tokenizer.json"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{folder / 'vocab.txt'}: {error}") from error
    return _wordpiece({line.rstrip(): row for row, line in enumerate(lines)}, {}, folder)


def _read_tokenizer(content: dict[str, Any], folder: Path) -> _Vocabulary:
    model = content["model"]
    added = {str(token["content"]): int(token["id"]) for token in content.get("added_tokens") or []}
    if model.get("type") == "WordPiece":
        if model.get("continuing_subword_prefix", CONTINUATION) != CONTINUATION:
            raise ValueError(f"pieces that continue a word must start with {CONTINUATION}")
        return _wordpiece({str(piece): int(row) for piece, row in model["vocab"].items()}, added, folder)
    if model.get("type") != "Unigram":
        raise UsageError(
            f"{folder}: a {model.get('type')} vocabulary is not supported, only WordPiece and Unigram with {WORD_MARK}"
        )
    pieces = tuple(str(piece) for piece, _ in model["vocab"])
    scores = tuple(float(score) for _, score in model["vocab"])
    if WORD_MARK not in pieces:
        raise ValueError(f"no piece {WORD_MARK}")
    if not all(map(math.isfinite, scores)):
        raise ValueError("a score that is no finite number")
    special = _special({piece: row for row, piece in enumerate(pieces)} | added, "metaspace", folder)
    return _Vocabulary(pieces, scores, "metaspace", special)


def _wordpiece(rows: Mapping[str, int], added: Mapping[str, int], folder: Path) -> _Vocabulary:
    pieces = [""] * (max(rows.values(), default=-1) + 1)
    for piece, row in rows.items():
        pieces[row] = piece
    special = _special({**rows, **added}, "wordpiece", folder)
    return _Vocabulary(tuple(pieces), (0.0,) * len(pieces), "wordpiece", special)


def _special(rows: Mapping[str, int], kind: Kind, folder: Path) -> Special:
    start, end, padding, unknown, mask = _SPECIAL[kind]
    missing = [piece for piece in (start, end, padding, unknown) if piece not in rows]
    if missing:
        raise UsageError(f"{folder}: the vocabulary has no {', '.join(missing)}")
    return Special(rows[start], rows[end], rows[padding], rows[unknown], rows.get(mask))


def _licence(folder: Path) -> str:
    """What the front matter of the folder's README.md says."""
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace") if readme.exists() else ""
    front = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    found = re.search(r"^license:\s*(?:-\s*)?(\S.*)$", front.group(1), re.MULTILINE) if front else None
    return found.group(1).strip().strip("'\"") if found else "not stated"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{file} is missing") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file}: not a JSON object")
    return content
