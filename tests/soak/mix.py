"""What the clients ask, and what each reply has to be."""

import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tiny_bundle import LABELS, MAX_TOKENS, PIECES, tiny_tokenizer

from lengnuan.model.cutting import Cutting, parts
from lengnuan.model.probabilities import softmax
from soak.client import Message, Reply
from soak.service import NOT_A_NUMBER, RAISES, SLOW, logits_of

MAX_CHARS, MAX_TEXTS = 2000, 40
JSON, NDJSON = "application/json", "application/x-ndjson"
TOLERANCE = 1e-5
TOKENIZER = tiny_tokenizer()

# What is wrong with a reply; nothing, if nothing is.
Judge = Callable[[Reply], str]


@dataclass(frozen=True)
class Exchange:
    """A request of some kind, and the judge of its reply. `may_be_refused`: 429 is as good an answer."""

    kind: str
    message: Message
    judge: Judge
    may_be_refused: bool = True

    def fault(self, reply: Reply) -> str:
        """What is wrong with the reply."""
        if reply.status == 429 and self.may_be_refused:
            return "" if reply.headers.get("retry-after", "").isdecimal() else "429 without Retry-After"
        if reply.status >= 400 and len(reply.body) >= 2048:
            return f"an error of {len(reply.body)} bytes"
        try:
            return self.judge(reply)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            return f"{reply.status} that can't be read: {error!r}"


@functools.lru_cache(20_000)
def expected(text: str, cutting: Cutting = "truncate") -> tuple[float, ...]:
    """Probabilities of a text, worked out without the service."""
    rows = parts(TOKENIZER.encode(text), MAX_TOKENS, cutting, False)
    logits = np.array([logits_of(row) for row in rows], dtype=np.float32).mean(axis=0)
    return tuple(softmax(logits).tolist())


def _same(found: Sequence[float], text: str, cutting: Cutting = "truncate") -> bool:
    wanted = expected(text, cutting)
    return len(found) == len(wanted) and all(abs(a - b) <= TOLERANCE for a, b in zip(found, wanted, strict=True))


def _code(reply: Reply) -> str:
    return str(json.loads(reply.body)["error"]["code"])


def _refusal(status: int, code: str) -> Judge:
    def judge(reply: Reply) -> str:
        found = reply.status, _code(reply) if reply.status >= 400 else ""
        return "" if found == (status, code) else f"{found} in place of {(status, code)}"

    return judge


def a_text(chance: random.Random, pieces: int = 3) -> str:
    """A few pieces and often a number: new to the cache about every other time."""
    words = "".join(chance.choices(list(PIECES), k=chance.randrange(1, pieces + 1)))
    return words + (str(chance.randrange(1000)) if chance.random() < 0.5 else "")


def _post(path: str, body: Any, kind: str = JSON) -> Message:
    return Message(path, [json.dumps(body, ensure_ascii=False).encode()], kind)


def classify(kind: str, texts: list[str], **options: Any) -> Exchange:
    """`/v1/classify`, whose texts may hold a fault each: an error in its place, or of the whole."""
    faulty = [index for index, text in enumerate(texts) if RAISES in text or NOT_A_NUMBER in text]
    partial, cutting = options.get("partial", False), options.get("on_long", "truncate")

    def judge(reply: Reply) -> str:
        if faulty and not partial:
            content = json.loads(reply.body)
            found = reply.status, content["error"]["code"], content["error"]["index"]
            return "" if found == (500, "engine_failed", faulty[0]) else f"{found} in place of 500"
        if reply.status != 200:
            return f"{reply.status} in place of 200"
        data = json.loads(reply.body)["data"]
        if [item["index"] for item in data] != list(range(len(texts))):
            return "other texts answered than asked"
        for index, (item, text) in enumerate(zip(data, texts, strict=True)):
            if index in faulty:
                if item["error"]["code"] != "engine_failed":
                    return "a faulty text without its error"
            elif not _same(item["probs"], text, cutting):
                return "the answer to another text"
        return ""

    return Exchange(kind, _post("/v1/classify", {"input": texts[0] if kind == "single" else texts, **options}), judge)


def single(chance: random.Random) -> Exchange:
    return classify("single", [a_text(chance)])


def several(chance: random.Random) -> Exchange:
    return classify("list", [a_text(chance) for _ in range(chance.randrange(1, 33))])


def long(chance: random.Random) -> Exchange:
    text = "".join(chance.choices(list(PIECES), k=chance.randrange(9, 60)))
    return classify("long", [text, a_text(chance)], on_long=chance.choice(["truncate", "window"]))


def faulty(chance: random.Random) -> Exchange:
    texts = [a_text(chance) for _ in range(chance.randrange(1, 9))]
    place = chance.randrange(len(texts))
    texts[place] += chance.choice([RAISES, RAISES, NOT_A_NUMBER])
    return classify("faulty", texts, partial=chance.random() < 0.7)


def slow(chance: random.Random) -> Exchange:
    return classify("slow", [a_text(chance) + SLOW])


def impatient(chance: random.Random) -> Exchange:
    text = a_text(chance) + SLOW
    body = {"input": text, "timeout_ms": chance.randrange(1, 50)}

    def judge(reply: Reply) -> str:
        if reply.status == 504:
            return _refusal(504, "deadline_exceeded")(reply)
        return classify("impatient", [text]).judge(reply)

    return Exchange("impatient", _post("/v1/classify", body), judge)


def stream(chance: random.Random) -> Exchange:
    """Lines of which some can't be read or fail, in chunks that end anywhere."""
    lines = [a_text(chance) + (RAISES if chance.random() < 0.02 else "") for _ in range(chance.randrange(1, 80))]
    blank = {index for index in range(len(lines)) if chance.random() < 0.05}
    content = b"".join(
        b"\n" if index in blank else json.dumps({"input": text}).encode() + b"\n" for index, text in enumerate(lines)
    )
    cuts = [0, *sorted(chance.randrange(1, len(content) + 1) for _ in range(3)), len(content)]
    chunks = [content[start:end] for start, end in itertools.pairwise(cuts) if start < end]

    def judge(reply: Reply) -> str:
        if reply.status != 200:
            return f"{reply.status} in place of 200"
        items = [json.loads(line) for line in reply.body.splitlines()]
        if [item["index"] for item in items] != list(range(len(lines))):
            return "other lines answered than asked"
        return next(filter(None, itertools.starmap(judge_line, enumerate(items))), "")

    def judge_line(index: int, item: dict[str, Any]) -> str:
        wanted = "empty_body" if index in blank else "engine_failed" if RAISES in lines[index] else ""
        if not wanted and "error" not in item:
            return "" if _same(item["probs"], lines[index]) else "the answer to another line"
        found = item["error"]["code"] if "error" in item else ""
        return "" if found == wanted or (found == "overloaded" and index not in blank) else f"{found} in a line"

    return Exchange("stream", Message("/v1/classify/stream", [*chunks, b""], NDJSON), judge)


def predict(chance: random.Random) -> Exchange:
    """Of text-embeddings-inference."""
    texts = [a_text(chance) for _ in range(chance.choice([1, 1, 5]))]
    inputs = texts[0] if len(texts) == 1 else [[text] for text in texts]

    def judge(reply: Reply) -> str:
        if reply.status != 200:
            return f"{reply.status} in place of 200"
        found = json.loads(reply.body)
        for text, scores in zip(texts, [found] if len(texts) == 1 else found, strict=True):
            by_label = {entry["label"]: entry["score"] for entry in scores}
            if not _same([by_label[label] for label in LABELS], text):
                return "the answer to another text"
        return ""

    return Exchange("predict", _post("/predict", {"inputs": inputs, "truncate": True}), judge)


def infer(chance: random.Random) -> Exchange:
    """Of the Open Inference Protocol."""
    texts = [a_text(chance) for _ in range(chance.randrange(1, 6))]
    body = {
        "id": str(chance.random()),
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}],
        "outputs": [{"name": "probabilities"}],
    }

    def judge(reply: Reply) -> str:
        if reply.status != 200:
            return f"{reply.status} in place of 200"
        content = json.loads(reply.body)
        rows = np.reshape(content["outputs"][0]["data"], (len(texts), len(LABELS))).tolist()
        whole = content["id"] == body["id"] and all(_same(row, text) for row, text in zip(rows, texts, strict=True))
        return "" if whole else "the answer to another text"

    return Exchange("infer", _post("/v2/models/tiny/infer", body), judge)


def tokenize(chance: random.Random) -> Exchange:
    text = a_text(chance)

    def judge(reply: Reply) -> str:
        [item] = json.loads(reply.body)["data"]
        ids = parts(TOKENIZER.encode(text), MAX_TOKENS, "truncate", False)[0]
        return "" if item["windows"][0]["ids"] == ids else "the ids of another text"

    return Exchange("tokenize", _post("/v1/tokenize", {"input": text}), judge, may_be_refused=False)


def explain(chance: random.Random) -> Exchange:
    text = a_text(chance)

    def judge(reply: Reply) -> str:
        content = json.loads(reply.body)
        whole = abs(content["confidence"] - max(expected(text))) <= TOLERANCE
        return "" if whole else "the answer to another text"

    return Exchange("explain", _post("/v1/explain", {"input": text}), judge)


BAD: tuple[tuple[bytes, str, int, str], ...] = (
    (b"", JSON, 400, "empty_body"),
    ('{"input": "好"}'.encode("gb18030"), JSON, 400, "not_utf8"),
    (b'{"input": ', JSON, 400, "invalid_json"),
    (b'{"input": NaN}', JSON, 400, "invalid_json"),
    (b"[" * 50_000, JSON, 400, "invalid_json"),
    (b'{"input": "a"}', "text/plain", 415, "unsupported_media_type"),
    (b'{"input": "a", "model": "other"}', JSON, 404, "unknown_model"),
    (b'{"input": [' + b'"a",' * MAX_TEXTS + b'"a"]}', JSON, 413, "too_many_texts"),
    (b'{"input": "' + b"a" * (MAX_CHARS + 1) + b'"}', JSON, 413, "text_too_large"),
    (b'{"input": 1}', JSON, 422, "invalid_request"),
    (b'{"input": "a", "topk": 1}', JSON, 422, "unknown_field"),
    (b'{"input": " "}', JSON, 422, "empty_text"),
    (b'{"input": "\\ud83d"}', JSON, 422, "invalid_unicode"),
    (b'{"input": "abababababab", "on_long": "error"}', JSON, 422, "text_too_long"),
)


def bad(chance: random.Random) -> Exchange:
    content, kind, status, code = chance.choice(BAD)
    return Exchange("bad", Message("/v1/classify", [content], kind), _refusal(status, code), may_be_refused=False)


def page(chance: random.Random) -> Exchange:
    path = chance.choice(["/v1/models", "/version", "/info", "/v2/models/tiny"])

    def judge(reply: Reply) -> str:
        return "" if reply.status == 200 else f"{path}: {reply.status}"

    return Exchange("page", Message(path, [b""], ""), judge, may_be_refused=False)


# How many of a hundred requests are of a kind.
SHARES: dict[Callable[[random.Random], Exchange], float] = {
    **{single: 45, several: 10, long: 4, faulty: 5, slow: 1, impatient: 2, stream: 2},
    **{predict: 9, infer: 9, tokenize: 4, explain: 1, bad: 5, page: 3},
}


def exchanges(chance: random.Random) -> Iterator[Exchange]:
    """Requests without end."""
    makers, shares = list(SHARES), list(SHARES.values())
    while True:
        yield chance.choices(makers, shares)[0](chance)
