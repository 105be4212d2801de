"""Thousands of bodies, from almost right to noise, at every route that reads one: no 5xx, errors small and in shape."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from bent_bodies import CANARY, GOOD
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from service_fixtures import serving

from lengnuan.service.compat.messages import InferError
from lengnuan.service.compat.tei import PredictError
from lengnuan.service.errors import ErrorReply

pytestmark = pytest.mark.integration

# All of them: FUZZ_BODIES=10000.
BODIES = int(os.environ.get("FUZZ_BODIES", "2000"))
SHAPES: dict[str, type[BaseModel]] = {"/predict": PredictError, "/v2/models/tiny/infer": InferError}

texts = st.one_of(
    st.sampled_from(["", " ", "\u3000", "\u200b", "\x00", "\ud83d", "\udc4d\ud83d", "😭", "a\nb", "电影很好看" * 9]),
    st.sampled_from([CANARY, "Left", "window", "label", "BYTES"]),
    st.text(max_size=12),
)
numbers = st.one_of(
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**40, 10**4000, 1e308, float("nan"), float("inf"), -float("inf")]),
    st.integers(-3, 3),
    st.floats(),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


# What to do at which place of a good body.
edits = st.lists(
    st.tuples(st.integers(0, 31), st.sampled_from(["put", "put", "drop", "add"]), texts, values), max_size=3
)
noise = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda opening, depth: opening * depth,
        st.sampled_from([b"[", b'{"input":', b'{"input":[', b"[[1],"]),
        st.sampled_from([50, 990, 100_000]),
    ),
)
ENCODINGS = ("utf-8", "utf-16", "utf-32", "utf-8-sig", "utf-7", "gb18030")


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a body, the whole of it first."""
    yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def edited(node: Any, path: tuple[Any, ...], action: str, name: str, value: Any) -> Any:
    """`node` with something else at `path`, or without it, or with more in it."""
    if not path:
        if action == "add" and isinstance(node, dict):
            return node | {name: value}
        return [*node, value] if action == "add" and isinstance(node, list) else value
    key, *rest = path
    copy = dict(node) if isinstance(node, dict) else list(node)
    if action == "drop" and not rest:
        del copy[key]
    else:
        copy[key] = edited(node[key], tuple(rest), action, name, value)
    return copy


@st.composite
def bodies(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """A good body that was edited, and well or badly encoded; or noise."""
    kind = draw(st.integers(0, 15))
    if kind < 2:
        return draw(noise)
    body: Any = good
    for number, action, name, value in draw(edits):
        ways = list(places(body))
        body = edited(body, ways[number % len(ways)], action, name, value)
    data = json.dumps(body, ensure_ascii=kind % 2 == 0).encode(errors="surrogatepass")
    if kind == 2:
        return json.dumps(good, ensure_ascii=False).encode(draw(st.sampled_from(ENCODINGS)))
    if kind > 4:
        return data
    place = draw(st.integers(0, len(data)))
    return data[:place] if kind == 3 else data[:place] + draw(st.binary(min_size=1, max_size=4)) + data[place:]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, str], bytes]:
    """A route, headers and a body."""
    path = draw(st.sampled_from(sorted(GOOD)))
    headers = {"Content-Type": "application/x-ndjson" if path.endswith("stream") else "application/json"}
    if draw(st.integers(0, 7)) == 0:
        name = draw(
            st.sampled_from(["Content-Type", "Content-Encoding", "X-Request-Id", "Inference-Header-Content-Length"])
        )
        headers[name] = draw(st.sampled_from(["", "gzip", "text/plain", "application/json; a", "7", "-1", "9" * 5000]))
    return path, headers, draw(bodies(GOOD[path]))


@contextmanager
def looped(folder: Path) -> Iterator[tuple[asyncio.Runner, httpx.AsyncClient]]:
    """A service in the loop of a runner, for examples one after the other."""
    with asyncio.Runner() as runner:
        service = serving(folder)
        client, _ = runner.run(service.__aenter__())
        try:
            yield runner, client
        finally:
            runner.run(service.__aexit__(None, None, None))


def check(path: str, reply: httpx.Response, body: bytes) -> None:
    # A body that gives its request a few milliseconds gets an honest 504 where the machine is busy.
    assert reply.status_code < 500 or (reply.status_code == 504 and re.search(b"timeout", body)), (path, body)
    if reply.is_error:
        check_error(reply.content, SHAPES.get(path, ErrorReply))
    for line in reply.content.splitlines() if path.endswith("stream") and reply.is_success else ():
        assert b'"index":' in line
        assert len(line) < 2048


def check_error(content: bytes, shape: type[BaseModel]) -> None:
    assert len(content) < 2048
    assert CANARY.encode() not in content
    given = json.loads(content)
    assert shape.model_validate(given).model_dump(exclude_unset=True) == given


def test_whatever_comes_is_answered_or_refused(tmp_path: Path) -> None:
    statuses: dict[str, set[int]] = {path: set() for path in GOOD}
    with looped(tmp_path) as (runner, client):

        @settings(max_examples=BODIES, suppress_health_check=list(HealthCheck))
        @given(requests())
        def answer(request: tuple[str, dict[str, str], bytes]) -> None:
            path, headers, body = request
            reply = runner.run(client.post(path, content=body, headers=headers))
            check(path, reply, body)
            statuses[path].add(reply.status_code)

        answer()
    for path, found in statuses.items():
        assert found >= ({200, 400, 415} if path.endswith("stream") else {200, 400, 415, 422}), path
