"""`lengnuan-classify`: texts from arguments, standard input or a file to answers, without a server.

One line of JSON comes out for every row that goes in, in the same order: the fields of an answer over HTTP and the
number of the input line. A row that can't be classified keeps its place and holds the error instead.
"""

import argparse
import io
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO, get_args

from tqdm import tqdm

from lengnuan.model.bundle import DEFAULT_BUNDLE
from lengnuan.model.errors import ModelError
from lengnuan.model.opening import EngineName, PrecisionName, open_engine
from lengnuan.model.rows import FORMATS, Line, Row, Source, UnreadableFile, read_rows, read_stream
from lengnuan.model.store import load_bundle
from lengnuan.service.offline import Answering, Tally, UsageError, json_line, words
from lengnuan.service.resume import resume

log = logging.getLogger(__name__)

# Rows that are held in memory, sorted by length and written together.
CHUNK_ROWS = 2048
SECONDS_BETWEEN_LINES = 30.0

EXIT_BAD_ROWS, EXIT_USAGE, EXIT_MODEL, EXIT_INTERRUPTED = 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Classify what the command line names.

    Returns:
        0 every row was classified, 1 some rows have an error in their place, 2 options that make no sense or a file
        that can't be read or written, 3 the bundle or the device can't be used, 130 interrupted.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("lengnuan").setLevel(logging.INFO)
    logging.getLogger(open_engine.__module__).setLevel(logging.WARNING)  # no talk before the answers
    try:
        tally = _run(arguments)
    except ModelError as error:
        log.error("%s", error)
        return EXIT_MODEL
    except BrokenPipeError:  # whoever reads standard output has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UsageError, UnreadableFile, OSError) as error:
        log.error("%s", error)
        return EXIT_USAGE
    except KeyboardInterrupt:
        log.error("interrupted%s", ": --resume goes on from here" if arguments.output else "")
        return EXIT_INTERRUPTED
    if tally.bad:
        log.warning("%s", tally)
    return EXIT_BAD_ROWS if tally.bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lengnuan-classify",
        description="Classify texts without a server: arguments, standard input (one text a line) or a file.",
        epilog="exit codes: 0 all rows classified, 1 some have an error instead, 2 usage, 3 model, 130 interrupted",
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts; none, or -, reads standard input")
    parser.add_argument("--input", type=Path, metavar="FILE", help="TSV, CSV, JSONL, Parquet or txt, also as .gz")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSONL; standard output if left out")
    parser.add_argument("--resume", action="store_true", help="go on with the --output of an interrupted run")
    parser.add_argument("--text-column", default="text", metavar="NAME", help="column with the texts (text)")
    parser.add_argument("--columns", default="", metavar="A,B", help="names of the columns of a file without a header")
    parser.add_argument("--format", default="", choices=FORMATS, help="of --input, where its name does not tell")
    bundle = Path(os.environ.get("LENGNUAN_BUNDLE") or DEFAULT_BUNDLE)
    parser.add_argument("--bundle", type=Path, default=bundle, metavar="FOLDER", help="the model ($LENGNUAN_BUNDLE)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="where it runs (auto)")
    parser.add_argument("--engine", default="auto", choices=get_args(EngineName), help="which runtime runs it (auto)")
    parser.add_argument("--precision", default="auto", choices=get_args(PrecisionName), help="its arithmetic (auto)")
    parser.add_argument("--threads", type=_at_least(0), default=0, help="CPU threads (0: what the container may use)")
    parser.add_argument("--batch-tokens", type=_at_least(1), default=4096, help="padded tokens in one batch (4096)")
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    def number(value: str) -> int:
        if int(value) < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return int(value)

    return number


def _run(arguments: argparse.Namespace) -> Tally:
    _check(arguments)
    bundle = load_bundle(arguments.bundle)
    engine = open_engine(bundle, arguments.device, arguments.engine, arguments.precision, arguments.threads)
    answering = Answering(bundle, engine, arguments.text_column, arguments.batch_tokens)
    rows, tally = _rows(arguments), Tally()
    if arguments.resume and arguments.output.exists():
        tally = resume(arguments.output, rows, answering, CHUNK_ROWS)
    chunks = _chunks(rows, _chunk_rows(arguments))
    chunks = itertools.chain([next(chunks, [])], chunks)  # what can't be read is found before anything is overwritten
    in_words = bool(arguments.texts) and not arguments.output and sys.stdout.isatty()
    with _open_output(arguments, in_words) as output, _progress_bar(arguments, tally.rows) as bar:
        last_said = time.monotonic()
        for chunk in chunks:
            for row, item in zip(chunk, answering.items(chunk, tally.rows), strict=True):
                output.write(words(item, row, arguments.text_column) if in_words else json_line(item))
                tally.add(item)
            output.flush()
            bar.update(len(chunk))
            if bar.disable and time.monotonic() - last_said > SECONDS_BETWEEN_LINES:
                last_said = time.monotonic()
                log.info("%d rows", tally.rows)
    return tally


def _check(arguments: argparse.Namespace) -> None:
    if arguments.texts and arguments.input:
        raise UsageError("give texts or --input, not both")
    if arguments.resume and not (arguments.input and arguments.output):
        raise UsageError("--resume needs --input and --output")
    both = arguments.input and arguments.output and arguments.input.exists() and arguments.output.exists()
    if both and arguments.output.samefile(arguments.input):
        raise UsageError(f"{arguments.output}: --output would overwrite --input")


def _rows(arguments: argparse.Namespace) -> Iterator[Line]:
    """The rows to classify, whatever they come from."""
    if arguments.input:
        columns = [name.strip() for name in arguments.columns.split(",") if name.strip()]
        return read_rows(Source(arguments.input, arguments.text_column, columns, arguments.format))
    if arguments.texts and arguments.texts != ["-"]:
        return (Row(i, {arguments.text_column: text}) for i, text in enumerate(arguments.texts, start=1))
    return read_stream(sys.stdin.buffer, arguments.text_column)


def _chunk_rows(arguments: argparse.Namespace) -> int:
    """One row where somebody types and waits for the answer."""
    typed = not arguments.input and arguments.texts in ([], ["-"]) and sys.stdin.isatty()
    return 1 if typed else CHUNK_ROWS


def _chunks(rows: Iterator[Line], size: int) -> Iterator[list[Line]]:
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def _open_output(arguments: argparse.Namespace, in_words: bool) -> "nullcontext[TextIO] | TextIO":
    if not arguments.output:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # JSON is UTF-8 whatever the locale says; words are for a terminal, which may lack some characters.
            encoding, errors = (None, "backslashreplace") if in_words else ("utf-8", None)
            sys.stdout.reconfigure(encoding=encoding, errors=errors)
        return nullcontext(sys.stdout)
    path: Path = arguments.output
    return path.open("a" if arguments.resume else "w", encoding="utf-8", newline="\n")


def _progress_bar(arguments: argparse.Namespace, done: int) -> tqdm:
    """A bar on a terminal that shows nothing else, for a file only."""
    shared = not arguments.output and sys.stdout.isatty()
    shown = bool(arguments.input) and sys.stderr.isatty() and not shared
    return tqdm(initial=done, unit="row", disable=not shown)


if __name__ == "__main__":
    sys.exit(main())
