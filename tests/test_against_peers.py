"""The benchmark against other servers: what it sends, counts and makes of it. No speed is asserted here."""

import asyncio
import gzip
import importlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lengnuan.model.encoder import Classifier, EncoderConfig

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts are no package
against_peers, comparison, load, sentences, servers = map(
    importlib.import_module, ("against_peers", "comparison", "load", "sentences", "servers")
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def request(size: int) -> tuple[Sequence[str], bytes]:
    texts = ["好"] * size
    return texts, servers.Server("x", "", (), "float32", ()).request(texts)


def put(handler: Handler, clients: int = 2, seconds: float = 0.1) -> Any:
    async def run() -> Any:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        outcome = await load.put(port, load.Load(clients, 1, 0.0, seconds), request)
        server.close()
        await asyncio.sleep(0)  # the handlers see the end of their connections
        return outcome

    return asyncio.run(run())


def replying(status: str, body: bytes, pieces: int = 1, close_after: int = 0) -> Handler:
    """Answers each request with the same reply, in so many pieces; may close the connection after some."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)
        for turn in itertools.count(1):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
                for part in np.array_split(np.frombuffer(reply, dtype=np.uint8), pieces):
                    writer.write(part.tobytes())
                    await asyncio.sleep(0)
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            if turn == close_after:
                break
        writer.close()

    return handle


@pytest.mark.parametrize("pieces", [1, 3])
def test_answers_are_kept_with_their_texts(pieces: int) -> None:
    outcome = put(replying("200 OK", b'{"data": []}', pieces))
    assert outcome.errors == 0
    assert len(outcome.answers) == len(outcome.latencies_s) >= 2  # one of each client, however slow the machine
    assert outcome.answers[0] == (["好"], b'{"data": []}')
    assert outcome.requests_s > 0


def test_a_refusal_is_an_error_and_no_answer() -> None:
    outcome = put(replying("503 Service Unavailable", b"busy"))
    assert outcome.errors > 1
    assert (outcome.requests_s, outcome.answers, outcome.latencies_s) == (0.0, [], [])


def test_a_closed_connection_is_an_error_and_opened_again() -> None:
    outcome = put(replying("200 OK", b"{}", close_after=1), clients=1, seconds=1.0)
    assert outcome.errors >= 1
    assert len(outcome.answers) >= 2


def test_a_slow_server_is_measured_by_requests_that_outlast_the_time() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        await writer.wait_closed()

    outcome = put(handle, clients=4, seconds=0.05)
    assert len(outcome.latencies_s) == 4
    assert min(outcome.latencies_s) >= 0.3
    assert 0 < outcome.requests_s <= 4 / 0.3


def test_no_text_comes_twice() -> None:
    short = list(itertools.islice(sentences.sentences(), 40_000))
    assert len(set(short)) == len(short)
    assert 30 <= np.mean([len(text) for text in short]) <= 45
    mixed = list(itertools.islice(sentences.joined_sentences(), 5_000))
    assert len(set(mixed)) == len(mixed)
    assert max(map(len, mixed)) == sentences.MAX_CHARACTERS
    assert min(map(len, mixed)) >= sentences.MIN_CHARACTERS


def test_reviews_come_again_with_a_number(tmp_path: Path) -> None:
    (tmp_path / "hotel").mkdir()
    with gzip.open(tmp_path / "hotel" / "train.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("label\ttext\n1\t很好\n0\t" + "差" * 600 + "\n")
    texts = list(itertools.islice(sentences.reviews(tmp_path), 4))
    assert sorted(map(len, texts)) == [2, 3, 505, 512]
    assert len(set(texts)) == 4


def test_a_folder_without_reviews_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no texts of hotel, chnsenticorp"):
        next(sentences.reviews(tmp_path))


def rounds(*rates: float, p99: float = 10.0) -> list[dict[str, float]]:
    return [{"requests_s": rate, "p50_ms": 5.0, "p99_ms": p99, "errors": 1.0} for rate in rates]


def cells(ours: Sequence[float], product: Sequence[float], assembly: Sequence[float]) -> dict[str, Any]:
    one = {comparison.OURS: rounds(*ours), "slow": rounds(1.0, 1.0, 1.0), "fast": rounds(*product)}
    both = one | {comparison.ASSEMBLY: rounds(*assembly, p99=30.0)}
    return dict.fromkeys([*comparison.CLIENTS, comparison.LISTS, comparison.MIXED], both)


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    found = cells(ours=[100, 10, 200], product=[50, 5, 10], assembly=[1, 1, 1])
    assert comparison.ratio(found, "1 client", "requests_s", (comparison.OURS, "fast")) == 2.0
    assert comparison.ratio(found, "1 client", "requests_s", (comparison.OURS, "missing")) is None
    assert comparison.medians(found["1 client"]["fast"]) == {
        "requests_s": 10.0, "p50_ms": 5.0, "p99_ms": 10.0, "errors": 3.0
    }  # fmt: skip


def test_goals_are_judged_against_the_best_product_and_the_assembly() -> None:
    found = comparison.goals(cells([120, 120, 120], [60, 60, 60], [100, 100, 100]), ["slow", "fast"])
    verdicts = {goal.name: (goal.figure, goal.verdict) for goal in found}
    assert verdicts["16 clients: requests/s over the best product (fast)"] == (2.0, "met")
    assert verdicts["16 clients: requests/s over mosec + OpenVINO"] == (1.2, "at the least")
    assert verdicts["1 client: requests/s over mosec + OpenVINO"] == (1.2, "met")
    assert verdicts[f"{comparison.MIXED}: requests/s over the best product (fast)"] == (2.0, "not met")
    assert verdicts["64 clients: p99 of mosec + OpenVINO over Lengnuan's"] == (3.0, "met")


def test_what_was_not_measured_is_not_met() -> None:
    one = {load: {comparison.OURS: rounds(1.0)} for load in [*comparison.CLIENTS, comparison.LISTS, comparison.MIXED]}
    assert {goal.verdict for goal in comparison.goals(one, [])} == {"not measured"}


def test_a_wrong_answer_is_seen() -> None:
    bundle = against_peers.Bundle.load(against_peers.DEFAULT_BUNDLE)
    reference = against_peers.Reference(bundle)
    server = servers.Server("x", "", (), "float32", ())
    rows = [bundle.tokenizer.encode("服务太差了")]
    right = against_peers.softmax(
        against_peers.score(against_peers.OnnxEngine(bundle.model_file, "cpu", 1), rows, 256)
        / bundle.manifest.temperature
    )[0]

    def differences(probs: object) -> list[float]:
        body = json.dumps({"data": [{"probs": probs}]}).encode()
        found: list[float] = reference.differences(server, load.Outcome(answers=[(["服务太差了"], body)]))
        return found

    assert differences(right.tolist())[0] < reference.tolerance("float32") < reference.tolerance("bfloat16") < 0.1
    assert differences(right[::-1].tolist())[0] > 0.5
    assert differences("none") == [float("inf")]
    assert differences([[0.5, 0.5]]) == [float("inf")]


def test_each_peer_has_its_script_and_pinned_releases() -> None:
    for server in against_peers.roster(reduced=True)[1:]:
        assert (ROOT / server.command[0]).is_file()
        pins = (servers.SCRIPTS / f"{server.environment}.txt").read_text(encoding="utf-8").splitlines()
        names = {line.partition("==")[0] for line in pins if "==" in line}
        assert {*server.packages, "numpy", "pydantic"} <= names
        assert all("==" in line or line.startswith("#") for line in pins)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    found = cells([120, 110, 130], [60, 60, 60], [100, 100, 100])
    facts = {name: {"precision": "float32"} for name in found["1 client"]}
    comparison.plot({"servers": facts, "cells": found}, tmp_path / "peers.svg")
    drawn = (tmp_path / "peers.svg").read_text(encoding="utf-8")
    assert all(name in drawn for name in facts)


def test_the_trainer_begins_with_the_network_of_fit(training: Any) -> None:
    loops = importlib.import_module("training_loops")
    shape = EncoderConfig(vocab_size=50, max_tokens=8, width=8, layers=2, heads=2, feed_forward_width=16, norm="post")
    torch.manual_seed(0)
    ours = Classifier(shape, 2).eval()
    for weight in ours.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    theirs = loops.BertClassifier(ours).eval()
    token_ids, mask = torch.randint(1, 50, (3, 8)), torch.ones(3, 8, dtype=torch.bool)
    mask[1, 3:] = False
    expected = ours(token_ids, mask)
    assert expected.abs().max() > 0.1
    assert torch.allclose(theirs(token_ids, mask.long())["logits"], expected, atol=1e-5)


def turns(losses: Iterator[float], seconds: float) -> list[dict[str, Any]]:
    return [
        {"tokens": 100, "seconds": seconds, "losses": [next(losses), next(losses)], "rows": [10, 30]} for _ in range(6)
    ]


@pytest.fixture(scope="module")
def training() -> Any:
    """By its file: the name alone is the room's."""
    spec = importlib.util.spec_from_file_location("training_speed", ROOT / "benchmarks" / "training.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdicts(found: Any) -> list[str]:
    return [goal["verdict"] for goal in found["goals"]]


def test_training_counts_only_with_the_same_loss(training: Any) -> None:
    good = training.summary({"fit": turns(iter([0.5] * 12), 1.0), "Trainer": turns(iter([0.5] * 12), 2.0)})
    assert (good["ratio"], verdicts(good), good["steps"]) == (2.0, ["met", "met"], 12)
    assert good["tokens_s"] == {"fit": 100.0, "Trainer": 50.0}
    worse = training.summary({"fit": turns(iter([0.6] * 12), 1.0), "Trainer": turns(iter([0.5] * 12), 2.0)})
    assert (worse["ratio"], verdicts(worse)) == (2.0, ["met", "not met"])


def test_a_step_of_few_rows_counts_less_in_the_loss(training: Any) -> None:
    uneven = training.summary({"fit": turns(iter([1.0, 0.0] * 6), 1.0), "Trainer": turns(iter([0.25] * 12), 1.0)})
    assert uneven["loss_by_third"] == {"fit": [0.25] * 3, "Trainer": [0.25] * 3}
