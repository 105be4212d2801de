"""Options that several commands have: labelled files and their columns, shares."""

import argparse
from pathlib import Path

from lengnuan.training.config import DataConfig
from lengnuan.training.inputs import Remote, data_file

SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "test": "test"}


def named_split(argument: str) -> tuple[str, Path | Remote]:
    """(split, file) of `test=reviews.tsv` or `data/test.tsv.gz`; a file of another name is a split of its own."""
    name, equals, file = argument.partition("=")
    if equals and name in SPLITS:
        return SPLITS[name], data_file(file)
    stem = Path(argument).name.split(".")[0]
    return SPLITS.get(stem.lower(), stem), data_file(argument)


def add_columns(parser: argparse.ArgumentParser) -> None:
    """The options that say how labelled files are read."""
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--label-column", default="label")
    parser.add_argument("--columns", default="", help="names, comma-separated, for files without a header")


def data_config(arguments: argparse.Namespace) -> DataConfig:
    """What those options say."""
    columns = tuple(name for name in arguments.columns.split(",") if name)
    return DataConfig(text_column=arguments.text_column, label_column=arguments.label_column, columns=columns)


def share(text: str) -> float:
    """A number from 0 up to, but not, 1."""
    if not 0.0 <= float(text) < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a share: 0 or more, below 1")
    return float(text)
