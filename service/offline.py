"""Rows to answers without a server: the fields of an answer over HTTP, and the number of the input line.

A row that can't be classified keeps its place and holds the error instead.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import Engine, Logits, score
from lengnuan.model.probabilities import decide
from lengnuan.model.rows import Blank, Line, Rejected
from lengnuan.model.text import has_lone_surrogate

LINES_NAMED = 10  # input lines at fault that the last message lists

Item = dict[str, Any]


class UsageError(Exception):
    """Options that do not go together, or an output that was not written from this input by these options."""


@dataclasses.dataclass
class Tally:
    """What has become of the rows so far."""

    rows: int = 0
    bad: int = 0
    bad_lines: list[int] = dataclasses.field(default_factory=list)

    def add(self, item: Item) -> None:
        """Count a row that is written."""
        self.rows += 1
        if "error" in item:
            self.bad += 1
            self.bad_lines += [item["line"]] if self.bad <= LINES_NAMED else []

    def copy(self) -> "Tally":
        """The counts of this moment."""
        return dataclasses.replace(self, bad_lines=list(self.bad_lines))

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.bad_lines)) + (", …" if self.bad > LINES_NAMED else "")
        return f"{self.bad} of {self.rows} rows have an error in place of an answer: line {lines}"


@dataclasses.dataclass(frozen=True)
class Answering:
    """All that an answer depends on, other than its row.

    Args:
        bundle: loaded and checked.
        engine: runs its graph.
        text_column: field of a row that holds the text.
        batch_tokens: padded tokens that run together.
    """

    bundle: Bundle
    engine: Engine
    text_column: str
    batch_tokens: int

    def items(self, rows: Sequence[Line], first: int) -> list[Item]:
        """One item a row, in order; `first` is the index of the first of them.

        The rows are scored together: batches of another make-up would change the last digits.
        """
        answers = self._answers([_text_of(row, self.text_column) for row in rows])
        numbered = enumerate(zip(rows, answers, strict=True), start=first)
        return [{"index": index, "line": row.line} | answer for index, (row, answer) in numbered]

    def _answers(self, texts: Sequence[str | Item]) -> list[Item]:
        """One answer a text; an error among them stays as it is."""
        ids = [self.bundle.tokenizer.encode(text) if isinstance(text, str) else [] for text in texts]
        real = [row for row in ids if row]
        logits = iter(score(self.engine, real, self.bundle.manifest.max_tokens, self.batch_tokens) if real else ())
        answers: list[Item] = []
        for text, row in zip(texts, ids, strict=True):
            if row:
                answers.append(_fields(self.bundle, next(logits), len(row)))
            elif isinstance(text, str):
                answers.append(_error("empty_text", "the text has no visible character"))
            else:
                answers.append(text)
        return answers


def json_line(item: Item) -> str:
    """An item as it is written; the same item always gives the same line."""
    return json.dumps(item, ensure_ascii=False) + "\n"


def words(item: Item, row: Line, text_column: str) -> str:
    """An item for a person to read."""
    if "error" in item:
        return f"{item['error']['code']}: {item['error']['message']}\n"
    uncertain = " (uncertain)" if item["abstained"] else ""
    return f"{item['label']} {item['confidence']:.3f}{uncertain} {_text_of(row, text_column)}\n"


def _text_of(row: Line, text_column: str) -> str | Item:
    """The text of a row, or the error that stands in its place."""
    if isinstance(row, Blank):
        return _error("empty_text", "the line is blank")
    if isinstance(row, Rejected):
        return _error("invalid_row", row.reason)
    text = row.fields.get(text_column)
    if not isinstance(text, str):
        return _error("invalid_row", f"{text_column} is missing or not a string")
    if has_lone_surrogate(text):
        return _error("invalid_unicode", "the text holds half of a surrogate pair")
    return text


def _error(code: str, message: str) -> Item:
    return {"error": {"code": code, "message": message}}


def _fields(bundle: Bundle, logits: Logits, tokens: int) -> Item:
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
