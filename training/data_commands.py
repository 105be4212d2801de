"""`lengnuan-train data ...`: check, split, convert, suspect, correct, fetch."""

import argparse
import logging
import sys
from pathlib import Path
from typing import get_args

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.training.annotations import FORMATS
from lengnuan.training.config import Concern, GateConfig, load_config
from lengnuan.training.data_options import add_columns, data_config, named_split, share
from lengnuan.training.errors import UsageError
from lengnuan.training.inputs import data_file
from lengnuan.training.review_commands import add_correct, add_suspect

log = logging.getLogger(__name__)


def add_data_commands(parser: argparse.ArgumentParser) -> None:
    """The sub-commands and their options."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_check(commands.add_parser("check", help="what is wrong with labelled files; exit code 3 past the limits"))
    _add_split(commands.add_parser("split", help="cut dev and test off a file; repeats and near copies stay together"))
    _add_convert(commands.add_parser("convert", help="from and to doccano, Label Studio, argilla, folders and tables"))
    add_suspect(commands.add_parser("suspect", help="labels that are likely wrong, as a queue for people to check"))
    add_correct(commands.add_parser("correct", help="put the labels that they checked into the training file"))
    fetch = commands.add_parser("fetch", help="download one, checked; resumes a broken download")
    fetch.add_argument("name")
    fetch.add_argument("--output", type=Path, default=Path("data"))
    fetch.set_defaults(command=_fetch)
    listing = commands.add_parser("list", help="what can be fetched: source, size, licence, split rule")
    listing.set_defaults(command=_list)


def _add_check(parser: argparse.ArgumentParser) -> None:
    named = "train, dev and test are known by file name; else write test=FILE"
    parser.add_argument("files", nargs="+", type=named_split, metavar="FILE", help=named)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--config", type=Path, help="take columns, [labels] and [gate] from this training config")
    add_columns(parser)
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE, help="its tokenizer counts; default: embedded")
    parser.add_argument("--no-bundle", action="store_true", help="count characters")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longer texts are cut; default: the bundle's limit")
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=SHARE", help=", ".join(get_args(Concern)))
    parser.set_defaults(command=_check)


def _check(arguments: argparse.Namespace) -> None:
    from lengnuan.training.check import Ruler, check_files
    from lengnuan.training.check_report import check_report
    from lengnuan.training.evaluate import write_json

    config = load_config(arguments.config) if arguments.config else None
    data = config.data.model_copy(update={"root": Path()}) if config else data_config(arguments)
    gate = _limits(config.gate if config else GateConfig(), arguments.limit)
    bundle = None if arguments.no_bundle else Bundle.load(arguments.bundle)
    limit = arguments.max_tokens or (bundle.manifest.max_tokens if bundle else 0)
    if not limit:
        raise UsageError("--no-bundle needs --max-tokens, counted in characters")
    ruler = Ruler(bundle.tokenizer if bundle else None, limit)
    checked = check_files(arguments.files, data, gate, ruler, config.labels if config else {})
    sys.stdout.write(check_report(checked))
    if arguments.json:
        write_json(checked.facts, arguments.json)
    checked.refuse()


def _limits(gate: GateConfig, changes: list[str]) -> GateConfig:
    content = gate.model_dump()
    for change in changes:
        name, _, share = change.partition("=")
        if name not in get_args(Concern):
            raise UsageError(f"--limit {change!r}: write NAME=SHARE, NAME being one of {', '.join(get_args(Concern))}")
        content["max_label_shift" if name == "label_shift" else f"max_{name}_share"] = share
    try:
        return GateConfig.model_validate(content)
    except ValueError as error:
        raise UsageError(f"--limit: a share is a number, 0 or more and below 1: {changes}") from error


def _add_split(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=data_file, metavar="FILE")
    parser.add_argument("--output", type=Path, required=True, help="folder for train, dev and test")
    parser.add_argument("--dev", type=share, default=0.1, metavar="SHARE")
    parser.add_argument("--test", type=share, default=0.1, metavar="SHARE")
    parser.add_argument("--seed", type=int, default=1)
    add_columns(parser)
    parser.set_defaults(command=_split)


def _split(arguments: argparse.Namespace) -> None:
    from lengnuan.training.divide import divide_file

    if arguments.dev + arguments.test >= 1.0:
        raise UsageError("--dev and --test leave nothing to train on")
    shares = {"dev_share": arguments.dev, "test_share": arguments.test}
    data = data_config(arguments).model_copy(update=shares)
    for name, counts in divide_file(arguments.file, arguments.output, data, arguments.seed).items():
        shown = ", ".join(f"{label} {rows:,}" for label, rows in counts.items())
        sys.stdout.write(f"{name}: {sum(counts.values()):,} rows ({shown})\n")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="SOURCE", help="file, or folder with one folder a label")
    parser.add_argument("--from", dest="source_format", choices=FORMATS, default="table")
    parser.add_argument("--to", dest="target_format", choices=FORMATS, default="table")
    parser.add_argument("--output", type=Path, required=True, help="a table's ending decides: .tsv, .csv or .jsonl")
    parser.add_argument("--text-column", default="text", help="column, or the tool's field")
    parser.add_argument("--label-column", default="label", help="column, or the tool's question or control")
    parser.add_argument("--label-names", type=Path, metavar="FILE", help="JSON with names of labels by id")
    parser.set_defaults(command=_convert)


def _convert(arguments: argparse.Namespace) -> None:
    from lengnuan.training.convert import Fields, read_annotated, read_names, write_annotated

    fields = Fields(arguments.text_column, arguments.label_column)
    names = read_names(arguments.label_names) if arguments.label_names else {}
    found = read_annotated(arguments.source, arguments.source_format, fields, names)
    write_annotated(found.rows, arguments.output, arguments.target_format, fields)
    sys.stdout.write(f"{arguments.output}: {found.facts()}\n")


def _fetch(arguments: argparse.Namespace) -> None:
    from lengnuan.training.fetch import fetch

    log.info("ready: %s", fetch(arguments.name, arguments.output))


def _list(arguments: argparse.Namespace) -> None:
    from lengnuan.training.fetch import catalogue_table

    sys.stdout.write(catalogue_table())
