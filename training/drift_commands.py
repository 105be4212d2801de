"""`lengnuan-train drift` and `lengnuan-train reference`."""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lengnuan.model.bundle import REFERENCE, Bundle
from lengnuan.model.engine import OnnxEngine
from lengnuan.model.text import normalise
from lengnuan.training.config import DataConfig
from lengnuan.training.data import read_texts, source_of
from lengnuan.training.errors import DriftFound, UsageError
from lengnuan.training.inputs import data_file
from lengnuan.training.splits import text_key

log = logging.getLogger(__name__)


def add_drift(parser: argparse.ArgumentParser) -> None:
    """`drift`: recent texts against a profile."""
    parser.add_argument("--bundle", required=True, help="bundle folder, or STORE@ALIAS")
    _add_texts(parser, "recent texts; labels are not needed")
    parser.add_argument("--reference", type=Path, metavar="FILE", help="compare with this profile, not the bundle's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.set_defaults(command=_drift)


def add_reference(parser: argparse.ArgumentParser) -> None:
    """`reference`: a profile of texts."""
    parser.add_argument("--bundle", type=Path, required=True)
    _add_texts(parser, "texts of the kind to compare with later, not those it was trained on; labels are not needed")
    to = "the profile; without it the bundle gets it and is sealed again, which changes its version"
    parser.add_argument("--output", type=Path, metavar="FILE", help=to)
    parser.set_defaults(command=_reference)


def _add_texts(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--data", type=data_file, nargs="+", required=True, metavar="FILE", help=what)
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--columns", default="", help="names, comma-separated, for files without a header")
    parser.add_argument("--threads", type=int, default=0)


class _Texts:
    """The texts of the files; after the last of them `distinct` says how many were different."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        names = tuple(name for name in arguments.columns.split(",") if name)
        self._data = DataConfig(text_column=arguments.text_column, columns=names)
        self._files: Sequence[Path] = arguments.data
        self._keys: set[int] = set()

    def __iter__(self) -> Iterator[str]:
        for path in self._files:
            count = 0
            for text in read_texts(source_of(path, self._data)):
                if normalise(text):
                    self._keys.add(hash(text_key(text)))
                    count += 1
                    yield text
            log.info("%s: %d texts", path, count)
            if not count:
                column = self._data.text_column
                raise UsageError(f"{path}: no text in a column {column!r}: name the right one with --text-column")

    @property
    def distinct(self) -> int:
        """Of the texts so far."""
        return len(self._keys)


def _drift(arguments: argparse.Namespace) -> None:
    from lengnuan.training.drift import compare, table
    from lengnuan.training.evaluate import write_json
    from lengnuan.training.promote import bundle_at
    from lengnuan.training.reference import profile, read_reference

    with bundle_at(arguments.bundle) as bundle:
        reference = read_reference(arguments.reference or bundle.path / REFERENCE)
        texts = _Texts(arguments)
        recent = profile(bundle, OnnxEngine(bundle.model_file, "cpu", arguments.threads), texts)
    found = compare(reference, recent, texts.distinct)
    sys.stdout.write(table(found))
    if arguments.json:
        write_json({"bundle": bundle.manifest.name, "version": bundle.version} | found.facts(), arguments.json)
    if found.not_judged:
        log.warning(
            "%s can't be judged: the reference is of an earlier release. `lengnuan-train reference` makes a whole one",
            ", ".join(found.not_judged),
        )
    if found.drifted:
        raise DriftFound(f"drift: {', '.join(found.drifted)}")


def _reference(arguments: argparse.Namespace) -> None:
    from lengnuan.training.reference import profile, put_reference

    bundle = Bundle.load(arguments.bundle)
    found = profile(bundle, OnnxEngine(bundle.model_file, "cpu", arguments.threads), _Texts(arguments))
    if arguments.output:
        found.write(arguments.output)
        log.info("profile of %d texts: %s", found.rows, arguments.output)
        return
    put_reference(bundle, found)
    log.info("profile of %d texts in %s, now version %s", found.rows, bundle.path, Bundle.load(bundle.path).version)
