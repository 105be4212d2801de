"""`lengnuan-classify`: texts from arguments, standard input or a file to answers, without a server.

One line of JSON comes out for every row that goes in, in the same order: the fields of an answer over HTTP and the
number of the input line. A row that can't be classified keeps its place and holds the error instead.
"""

import argparse
import dataclasses
import itertools
import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import Engine, Logits, OnnxEngine, replay_golden, score
from lengnuan.model.errors import ModelError
from lengnuan.model.probabilities import decide
from lengnuan.model.rows import FORMATS, Blank, Line, Rejected, Row, Source, UnreadableFile, read_rows, read_stream
from lengnuan.model.text import has_lone_surrogate

log = logging.getLogger(__name__)

# Rows that are held in memory, sorted by length and written together.
CHUNK_ROWS = 2048
SECONDS_BETWEEN_LINES = 30.0
LINES_NAMED = 10  # input lines at fault that the last message lists

EXIT_BAD_ROWS, EXIT_USAGE, EXIT_MODEL, EXIT_INTERRUPTED = 1, 2, 3, 130

Item = dict[str, Any]


class UsageError(Exception):
    """Options that do not go together, or an output file that is not this command's."""


@dataclasses.dataclass
class Tally:
    """What has become of the rows so far."""

    rows: int = 0
    bad: int = 0
    bad_lines: list[int] = dataclasses.field(default_factory=list)
    last_line: int = 0

    def add(self, item: Item) -> None:
        """Count a row that is written."""
        self.rows += 1
        self.last_line = item["line"]
        if "error" in item:
            self.bad += 1
            self.bad_lines += [item["line"]] if self.bad <= LINES_NAMED else []

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.bad_lines)) + (", …" if self.bad > LINES_NAMED else "")
        return f"{self.bad} of {self.rows} rows have an error in place of an answer: line {lines}"


def main(argv: Sequence[str] | None = None) -> int:
    """Classify what the command line names.

    Returns:
        0 every row was classified, 1 some rows have an error in their place, 2 options that make no sense or a file
        that can't be read or written, 3 the bundle or the device can't be used, 130 interrupted.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("lengnuan").setLevel(logging.INFO)
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
    bundle = Bundle.load(arguments.bundle)
    engine = OnnxEngine(bundle.model_file, arguments.device, arguments.threads)
    replay_golden(bundle, engine)
    rows = _rows(arguments)
    tally = _resume(arguments.output, rows) if arguments.resume and arguments.output.exists() else Tally()
    chunks = _chunks(rows, _chunk_rows(arguments))
    chunks = itertools.chain([next(chunks, [])], chunks)  # what can't be read is found before anything is overwritten
    in_words = bool(arguments.texts) and not arguments.output and sys.stdout.isatty()
    with _open_output(arguments) as output, _progress_bar(arguments, tally.rows) as bar:
        last_said = time.monotonic()
        for chunk in chunks:
            texts = [_text_of(line, arguments.text_column) for line in chunk]
            answers = _answer(bundle, engine, texts, arguments.batch_tokens)
            for line, text, answer in zip(chunk, texts, answers, strict=True):
                item = {"index": tally.rows, "line": line.line} | answer
                output.write((_in_words(item, text) if in_words else json.dumps(item, ensure_ascii=False)) + "\n")
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


def _text_of(line: Line, text_column: str) -> str | Item:
    """The text of a row, or the error that stands in its place."""
    if isinstance(line, Blank):
        return _error("empty_text", "the line is blank")
    if isinstance(line, Rejected):
        return _error("invalid_row", line.reason)
    text = line.fields.get(text_column)
    if not isinstance(text, str):
        return _error("invalid_row", f"{text_column} is missing or not a string")
    if has_lone_surrogate(text):
        return _error("invalid_unicode", "the text holds half of a surrogate pair")
    return text


def _error(code: str, message: str) -> Item:
    return {"error": {"code": code, "message": message}}


def _answer(bundle: Bundle, engine: Engine, texts: Sequence[str | Item], batch_tokens: int) -> list[Item]:
    """One answer a text, in order; an error among them stays as it is."""
    ids = [bundle.tokenizer.encode(text) if isinstance(text, str) else [] for text in texts]
    real = [row for row in ids if row]
    logits = iter(score(engine, real, bundle.manifest.max_tokens, batch_tokens) if real else ())
    answers: list[Item] = []
    for text, row in zip(texts, ids, strict=True):
        if row:
            answers.append(_item(bundle, next(logits), len(row)))
        elif isinstance(text, str):
            answers.append(_error("empty_text", "the text has no visible character"))
        else:
            answers.append(text)
    return answers


def _item(bundle: Bundle, logits: Logits, tokens: int) -> Item:
    """The fields of `lengnuan.service.schemas.Classification`."""
    manifest = bundle.manifest
    prediction = decide(logits, manifest.labels, manifest.temperature, manifest.abstain_threshold)
    return {
        "label": prediction.label,
        "confidence": prediction.confidence,
        "probs": prediction.probabilities,
        "num_classes": len(manifest.labels),
        "truncated": tokens > manifest.max_tokens,
        "tokens": tokens,
        "tokens_used": min(tokens, manifest.max_tokens),
        "abstained": prediction.abstained,
    }


def _in_words(item: Item, text: str | Item) -> str:
    if "error" in item:
        return f"{item['error']['code']}: {item['error']['message']}"
    uncertain = " (uncertain)" if item["abstained"] else ""
    return f"{item['label']} {item['confidence']:.3f}{uncertain} {text}"


def _resume(output: Path, rows: Iterator[Line]) -> Tally:
    """Cut `output` back to whole chunks and skip the rows that they answer.

    A chunk is always scored as a whole: batches of another make-up would change the last digits of an answer, and
    the finished file would differ from that of a run that was never interrupted.

    Raises:
        UsageError: the file was not written from these rows.
    """
    found, kept, end, position = Tally(), Tally(), 0, 0
    with output.open("rb") as file:
        for line in itertools.takewhile(lambda line: line.endswith(b"\n"), file):
            found.add(_read_back(output, line, found.rows))
            position += len(line)
            if found.rows % CHUNK_ROWS == 0:
                kept, end = dataclasses.replace(found, bad_lines=list(found.bad_lines)), position
    last = deque((line.line for line in itertools.islice(rows, kept.rows)), maxlen=1)
    if kept.rows and list(last) != [kept.last_line]:
        raise UsageError(f"{output}: row {kept.rows} answers line {kept.last_line}, which is no such row of --input")
    os.truncate(output, end)
    return kept


def _read_back(output: Path, line: bytes, index: int) -> Item:
    try:
        item = json.loads(line)
        if item["index"] == index and isinstance(item["line"], int):
            return dict(item)
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{output}: line {index + 1} is not an answer of this command; --resume needs its own output")


def _open_output(arguments: argparse.Namespace) -> "nullcontext[TextIO] | TextIO":
    if not arguments.output:
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
