"""A loaded model at work: texts in, answers out, whatever route they came by."""

import asyncio
import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from lengnuan.model.bundle import Bundle
from lengnuan.model.cutting import parts
from lengnuan.model.engine import EngineFacts, Logits
from lengnuan.model.probabilities import decide
from lengnuan.model.text import has_lone_surrogate
from lengnuan.service.answers import Answer, Answers, Encoded, LongRule, OnAnswers, outcome_of
from lengnuan.service.batching import Priority, Scored, Scorer, longest_wait
from lengnuan.service.errors import (
    DeadlineExceeded,
    EmptyText,
    InvalidUnicode,
    ServiceError,
    TextTooLarge,
    TextTooLong,
    TooManyTexts,
)
from lengnuan.service.holding import Holders
from lengnuan.service.metrics import ModelMetrics
from lengnuan.service.settings import Settings
from lengnuan.service.stages import note, note_run, noting

T = TypeVar("T")
WAYS_OUT = "on_long=truncate would keep its head and tail, on_long=window read all of it in overlapping windows"
# A character costs about a microsecond, so this much text keeps the event loop for 2 ms; more goes to a thread.
INLINE_CHARS = 2000
# Answers cost about 15 microseconds each: 2 ms.
ANSWERS_AT_ONCE = 128


class ServedModel:
    """A bundle behind its batcher, wherever that is.

    Args:
        bundle: loaded and checked.
        engine: what is told of the one that runs the bundle's graph.
        batcher: gives the rows of texts their logits; started and stopped with the model.
        settings: limits.
        metrics: where texts are measured.
        name: by which requests and replies know the model.

    Attributes:
        holders: those who use it; after another model has taken its place, it ends with the last of them.
        on_answers: told of all texts of a request, and of what became of each.
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: EngineFacts,
        batcher: Scorer,
        settings: Settings,
        metrics: ModelMetrics,
        name: str,
    ) -> None:
        self.bundle = bundle
        self.engine = engine
        self.name = name
        self.holders = Holders()
        self.on_answers: OnAnswers | None = None
        self.batcher = batcher
        self._max_chars = settings.max_chars
        self._metrics = metrics
        # One thread: more of them would only fight the event loop for the interpreter's lock.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._max_rows = settings.max_texts

    def start(self) -> None:
        """Start the batcher."""
        self.batcher.start()

    async def stop(self) -> None:
        """Stop the batcher; whoever still waits gets `NotReady`."""
        await self.batcher.stop()
        self._executor.shutdown(wait=False)

    async def classify(
        self,
        texts: Sequence[str],
        on_long: LongRule,
        partial: bool,
        deadline: float,
        priority: Priority = "interactive",
    ) -> Answers:
        """Classify texts; waits at most until `deadline` (`time.monotonic()`).

        Args:
            texts: raw, at least one.
            on_long: what to do with more tokens than the model reads.
            partial: give the error in place of a text that fails; otherwise the first one is raised, if possible
                before any text has run.
            deadline: when to give up.
            priority: bulk takes what interactive texts leave of the engine.

        Raises:
            ServiceError: the queue is full, the batcher is not running, or, unless `partial`, a text failed.
        """
        with self._metrics.count_items(len(texts)) as outcomes:
            # Under overload most requests end here: before their texts have cost anything.
            self.batcher.check_room(len(texts), len(texts), priority)
            started = time.monotonic()
            encoded = await self.encode_all(texts, on_long, deadline)
            tokenize_s = time.monotonic() - started
            self._metrics.tokenize_seconds.observe(tokenize_s)
            if noting():
                tokens = sum(item.tokens for item in encoded if isinstance(item, Encoded))
                note("tokenize", started, tokenize_s, texts=len(texts), tokens=tokens)
            if not partial:
                _raise_first(encoded)
            rows = [row for item in encoded if isinstance(item, Encoded) for row in item.rows]
            self._check_rows(len(rows))
            scores = await self.batcher.score(rows, deadline, priority) if rows else []
            returned = time.monotonic()
            queue_s, infer_s = longest_wait(scores)
            note_run(returned, queue_s, infer_s, len(rows))
            items = await self._answer_all(encoded, iter(scores))
            self._metrics.postprocess_seconds.observe(time.monotonic() - returned)
            outcomes += [outcome_of(item) for item in items]
        if self.on_answers is not None:
            self.on_answers(texts, items, on_long)
        if not partial:
            _raise_first(items)
        return Answers(items, tokenize_s, queue_s, infer_s)

    def _check_rows(self, rows: int) -> None:
        """A window takes the room of a text; the queue has been made for as many as one request may have."""
        if rows > self._max_rows:
            message = "the texts need too many windows; send fewer of them, or use on_long=truncate"
            raise TooManyTexts(message, param="input", limit=self._max_rows, actual=rows)

    def parts(self, tokens: Sequence[T], on_long: LongRule) -> list[list[T]]:
        """What the model reads of a text's tokens, or of anything that goes with them: one row, or its windows."""
        cutting = "truncate" if on_long == "error" else on_long
        return parts(tokens, self.bundle.manifest.max_tokens, cutting, self.bundle.tokenizer.enclosed)

    async def encode_all(
        self, texts: Sequence[str], on_long: LongRule, deadline: float
    ) -> list[Encoded | ServiceError]:
        """Check texts and turn them into ids.

        The same for any amount of text; much of it goes through a thread, piece by piece, to be stoppable.
        """
        if sum(map(len, texts)) <= INLINE_CHARS:
            return self._encode_piece(enumerate(texts), on_long)
        loop = asyncio.get_running_loop()
        encoded: list[Encoded | ServiceError] = []
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                for piece in _pieces(texts):
                    work = functools.partial(self._encode_piece, piece, on_long)
                    encoded += await loop.run_in_executor(self._executor, work)
        except TimeoutError:
            raise DeadlineExceeded("tokenize") from None
        return encoded

    def _encode_piece(self, numbered: Iterable[tuple[int, str]], on_long: LongRule) -> list[Encoded | ServiceError]:
        return [self._encode(text, index, on_long) for index, text in numbered]

    def _encode(self, text: str, index: int, on_long: LongRule) -> Encoded | ServiceError:
        """Check one text and turn it into ids."""
        param, limit = f"input[{index}]", self.bundle.manifest.max_tokens
        if len(text) > self._max_chars:
            message = "the text has too many characters; send a shorter one"
            return TextTooLarge(message, param=param, index=index, limit=self._max_chars, actual=len(text))
        if has_lone_surrogate(text):
            return InvalidUnicode("the text holds half of a surrogate pair", param=param, index=index)
        ids = self.bundle.tokenizer.encode(text)
        if not ids:
            return EmptyText("the text has no visible character", param=param, index=index)
        if len(ids) > limit and on_long == "error":
            message = f"the text has more tokens than the model reads; {WAYS_OUT}"
            return TextTooLong(message, param=param, index=index, limit=limit, actual=len(ids))
        self._metrics.input_chars.observe(len(text))
        self._metrics.input_tokens.observe(len(ids))
        self._metrics.unknown_ratio.observe(self.bundle.tokenizer.unknown_share(ids))
        return Encoded(self.parts(ids, on_long), len(ids))

    async def _answer_all(
        self, encoded: Sequence[Encoded | ServiceError], scores: Iterator[Scored | ServiceError]
    ) -> list[Answer | ServiceError]:
        """Pair every text that was run with its score; lets other requests in between now and then."""
        items: list[Answer | ServiceError] = []
        for index, item in enumerate(encoded):
            if isinstance(item, Encoded):
                items.append(self._answer(item, list(itertools.islice(scores, len(item.rows))), index))
            else:
                items.append(item)
            if index % ANSWERS_AT_ONCE == ANSWERS_AT_ONCE - 1:
                await asyncio.sleep(0)
        return items

    def _answer(self, item: Encoded, scores: Sequence[Scored | ServiceError], index: int) -> Answer | ServiceError:
        """From the scores of the text's rows, one a window."""
        for score in scores:
            if isinstance(score, ServiceError):
                score.index = index
                return score
        rows = [score.logits for score in scores if isinstance(score, Scored)]
        logits: Logits = rows[0] if len(rows) == 1 else np.stack(rows).mean(axis=0)
        manifest = self.bundle.manifest
        prediction = decide(logits, manifest.labels, manifest.temperature, manifest.abstain_threshold)
        answer = Answer(prediction, logits, item.tokens, item.tokens_used, len(rows))
        self._metrics.observe_answer(prediction, answer.truncated)
        return answer


def _pieces(texts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Numbered texts in runs of about `INLINE_CHARS` characters; a longer text is a run of its own."""
    starts = itertools.accumulate(map(len, texts), initial=0)
    numbered = zip(starts, enumerate(texts), strict=False)
    for _, run in itertools.groupby(numbered, key=lambda entry: entry[0] // INLINE_CHARS):
        yield [text for _, text in run]


def _raise_first(items: Sequence[object]) -> None:
    for item in items:
        if isinstance(item, ServiceError):
            raise item
