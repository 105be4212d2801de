"""Compressed bodies are refused as such, unread, on every route: nothing is ever unpacked, so nothing can blow up."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from service_fixtures import async_test, serving

JSON, LINES = "application/json", "application/x-ndjson"
ROUTES = {
    **dict.fromkeys(("/v1/classify", "/v1/tokenize", "/v1/explain", "/predict", "/v2/models/tiny/infer"), JSON),
    "/v1/classify/stream": LINES,
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "encodings", [["gzip"], ["GZIP"], ["br"], ["zstd"], ["deflate"], ["identity, gzip"], ["identity", "gzip"]]
)
def test_a_compressed_body_is_refused_unread(tmp_path: Path, path: str, encodings: list[str]) -> None:
    async def unread() -> AsyncIterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    @async_test
    async def run() -> None:
        headers = [("Content-Type", ROUTES[path]), *(("Content-Encoding", encoding) for encoding in encodings)]
        async with serving(tmp_path) as (client, _):
            reply = await client.post(path, content=unread(), headers=headers)
        assert reply.status_code == 415
        assert "must not be compressed" in reply.text

    run()


@pytest.mark.parametrize("path", ROUTES)
def test_a_bomb_that_hides_what_it_is_is_no_json(tmp_path: Path, path: str) -> None:
    bomb = gzip.compress(b" " * 10_000_000)

    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            reply = await client.post(path, content=bomb, headers={"Content-Type": ROUTES[path]})
        assert reply.status_code == 400 or '"code":"not_utf8"' in reply.text
        assert len(reply.content) < 2048

    run()


@pytest.mark.parametrize("encoding", ["identity", "Identity"])
def test_no_encoding_may_be_named_as_such(tmp_path: Path, encoding: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            reply = await client.post("/v1/classify", json={"input": "好"}, headers={"Content-Encoding": encoding})
        assert reply.status_code == 200

    run()
