"""`lengnuan-train data suspect` and `data correct`: doubtful labels out to people, and their answers back in."""

import argparse
import sys
from pathlib import Path

from lengnuan.training.annotations import FORMATS, TOOLS
from lengnuan.training.config import load_config
from lengnuan.training.data_options import add_columns, data_config, share
from lengnuan.training.errors import UsageError
from lengnuan.training.inputs import data_file


def add_suspect(parser: argparse.ArgumentParser) -> None:
    """The options of `data suspect`."""
    several = "out-of-fold.jsonl, from `fit --folds`; of several, for the same rows, the mean counts"
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help=several)
    parser.add_argument("--output", type=Path, required=True, help="the queue; a table's ending decides: .csv, .jsonl")
    parser.add_argument("--to", dest="target_format", choices=("table", *TOOLS), default="table")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--share", type=share, metavar="SHARE", help="of the texts; default: as many as seem wrong")
    size.add_argument("--texts", type=int, metavar="N", help="so many texts")
    parser.add_argument("--text-column", default="text", help="column, or the tool's field")
    parser.add_argument("--label-column", default="label", help="column, or the tool's question or control")
    parser.set_defaults(command=_suspect)


def _suspect(arguments: argparse.Namespace) -> None:
    from lengnuan.training.convert import Fields
    from lengnuan.training.out_of_fold import read_mean
    from lengnuan.training.suspects import rank, write_queue

    ranked = rank(read_mean(arguments.files))
    issues = sum(one.issue for one in ranked)
    count = issues
    if arguments.share is not None:
        count = round(arguments.share * len(ranked))
    elif arguments.texts is not None:
        count = arguments.texts
    if count < 1:
        raise UsageError("the queue would be empty: no label seems wrong; --texts N takes the N most doubtful")
    write_queue(
        ranked[:count], arguments.output, arguments.target_format, Fields(arguments.text_column, arguments.label_column)
    )
    written = min(count, len(ranked))
    sys.stdout.write(
        f"{arguments.output}: the {written:,} most doubtful of {len(ranked):,} texts; the labels of {issues:,} "
        f"({issues / len(ranked):.1%}) seem wrong\n"
    )


def add_correct(parser: argparse.ArgumentParser) -> None:
    """The options of `data correct`."""
    parser.add_argument("file", type=data_file, metavar="FILE", help="the training file")
    parser.add_argument("--reviewed", type=data_file, required=True, metavar="FILE", help="what the tool exported")
    parser.add_argument("--from", dest="source_format", choices=FORMATS, default="table")
    parser.add_argument("--output", type=Path, required=True, help="the corrected file: .tsv, .csv or .jsonl")
    parser.add_argument("--drop", default="", metavar="LABEL", help="rows of texts with this answer are left out")
    parser.add_argument("--config", type=Path, help="take columns and [labels] of FILE from this training config")
    add_columns(parser)
    parser.add_argument("--reviewed-text", default="text", metavar="NAME", help="the text's column or field there")
    parser.add_argument("--reviewed-label", default="label", metavar="NAME", help="the label's column or question")
    parser.add_argument("--label-names", type=Path, metavar="FILE", help="JSON with names of labels by id")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    parser.set_defaults(command=_correct)


def _correct(arguments: argparse.Namespace) -> None:
    from lengnuan.training.convert import Fields, read_annotated, read_names
    from lengnuan.training.correct import correct_file
    from lengnuan.training.data import LabelSet, read_labels, source_of
    from lengnuan.training.evaluate import write_json

    config = load_config(arguments.config) if arguments.config else None
    data = config.data.model_copy(update={"root": Path()}) if config else data_config(arguments)
    if config and config.labels:
        labels = LabelSet(tuple(config.labels), config.labels)
    else:
        labels = LabelSet.infer(read_labels(source_of(arguments.file, data), data.label_column))
    fields = Fields(arguments.reviewed_text, arguments.reviewed_label)
    names = read_names(arguments.label_names) if arguments.label_names else {}
    reviewed = read_annotated(arguments.reviewed, arguments.source_format, fields, names, confirmed=True)
    found = correct_file(arguments.file, reviewed.rows, arguments.output, data, labels, drop=arguments.drop)
    sys.stdout.write(f"reviewed: {reviewed.facts()}\n{arguments.output}: {found}\n")
    if arguments.json:
        write_json(found.facts(), arguments.json)
