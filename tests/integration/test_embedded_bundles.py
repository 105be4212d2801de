"""The embedded bundles as they ship: their size, their claims, and that nothing around a text changes its answer."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from service_fixtures import running

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.encoder import Classifier, EncoderConfig
from lengnuan.model.engine import OnnxEngine, replay_golden
from lengnuan.model.padding import pad
from lengnuan.model.probabilities import softmax
from lengnuan.model.tokenizer import PAD_ID
from lengnuan.service.app import create_app
from lengnuan.service.settings import Settings
from lengnuan.training.export import graph_weights
from lengnuan.training.start import START, load_encoder, start_from

pytestmark = pytest.mark.integration

TEXT = "这部电影虽然前半段节奏很慢，但结尾非常精彩"
OTHERS = [f"第{n}次来，{'房间很干净' if n % 2 else '味道一般，' * n}" for n in range(1, 32)]
MEGABYTES = {"default": 30, "tiny": 6}  # every embedded bundle, and how large it may be


@pytest.fixture(scope="module", params=MEGABYTES)
def bundle(request: pytest.FixtureRequest) -> Bundle:
    return Bundle.load(DEFAULT_BUNDLE.with_name(request.param))


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> OnnxEngine:
    return OnnxEngine(bundle.model_file, "cpu", 1)


Classify = Callable[[str | list[str]], list[dict[str, Any]]]


@contextlib.contextmanager
def service(bundle: Bundle, **settings: Any) -> Iterator[tuple[Classify, dict[str, Any]]]:
    """`POST /v1/classify` of a service that keeps no answers; gives `data`. And the served model's card."""
    app = create_app(Settings(bundle=bundle.path, threads=1, cache_size=0, **settings))
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        client = runner.run(stack.enter_async_context(running(app)))

        def post(texts: str | list[str]) -> list[dict[str, Any]]:
            reply = runner.run(client.post("/v1/classify", json={"input": texts}))
            assert reply.status_code == 200, reply.text
            data: list[dict[str, Any]] = reply.json()["data"]
            return data

        yield post, runner.run(client.get("/v1/models")).json()["data"][0]
        runner.run(stack.aclose())


@pytest.fixture(scope="module")
def classify(bundle: Bundle) -> Iterator[Classify]:
    with service(bundle, precision="float32") as (post, _):
        yield post


def change(classify: Classify, bundle: Bundle) -> float:
    """How far neighbours and padding move the probabilities of `TEXT`."""
    alone = np.array(classify(TEXT)[0]["probs"])
    in_company = np.array(classify([*OTHERS[:7], TEXT, *OTHERS[7:]])[7]["probs"])
    longest = "味道不错，" * bundle.manifest.max_tokens
    padded = np.array(classify([longest, TEXT])[1]["probs"])
    return float(max(np.abs(in_company - alone).max(), np.abs(padded - alone).max()))


def test_training_starts_from_what_is_served(bundle: Bundle, engine: OnnxEngine, tmp_path: Path) -> None:
    start_from(bundle.path, tmp_path)
    model = Classifier(EncoderConfig(**bundle.manifest.encoder), len(bundle.labels)).eval()
    load_encoder(model.encoder, tmp_path / START)
    weights = graph_weights(bundle.model_file)
    model.head.load_state_dict({"weight": weights["head.weight"], "bias": weights["head.bias"]})
    ids, mask = pad([bundle.tokenizer.encode(TEXT)], PAD_ID)
    with torch.no_grad():
        found = model(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    assert np.abs(found - engine.run(ids, mask)).max() <= 1e-4


def test_it_answers_as_recorded(bundle: Bundle, engine: OnnxEngine) -> None:
    assert replay_golden(bundle, engine) <= bundle.manifest.precision.tolerance


def test_it_is_small(bundle: Bundle) -> None:
    size = sum(file.stat().st_size for file in bundle.path.rglob("*") if file.is_file())
    assert size <= MEGABYTES[bundle.path.name] * 10**6


def test_it_is_not_below_the_referee_on_the_mean_of_the_tests(bundle: Bundle) -> None:
    assert len(bundle.manifest.scores["test"]) == 8
    assert bundle.manifest.scores["margin_over_referee"]["margin"] >= 0.0


def test_its_card_names_every_training_source(bundle: Bundle) -> None:
    card = (bundle.path / "report" / "MODEL_CARD.md").read_text(encoding="utf-8")
    config = json.loads((bundle.path / "report" / "metrics.json").read_text(encoding="utf-8"))["config"]
    assert len(config["data"]["train"]) == 8
    assert all(f"**{name}**" in card for name in config["data"]["train"])


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (TEXT, "positive"),
        ("服务太差了", "negative"),
        ("這部電影結尾非常精彩", "positive"),
        ("ＢＡＤ，太失望了！", "negative"),
    ],
)
def test_it_tells_good_from_bad(classify: Classify, text: str, label: str) -> None:
    assert classify(text)[0]["label"] == label


def test_over_http_neighbours_and_padding_never_change_an_answer(classify: Classify, bundle: Bundle) -> None:
    assert change(classify, bundle) <= 1e-5


def test_as_it_is_served_here_they_move_it_less_than_the_bundle_states(bundle: Bundle) -> None:
    with service(bundle) as (classify, card):
        # Two logits of each of two answers may be off by the bound, and a probability moves by a quarter of that.
        assert change(classify, bundle) <= card["precision"]["tolerance"] / bundle.manifest.temperature


def test_in_the_graph_padding_to_the_limit_never_changes_an_answer(bundle: Bundle, engine: OnnxEngine) -> None:
    ids = bundle.tokenizer.encode(TEXT)
    alone = softmax(engine.run(*pad([ids], PAD_ID)))
    padded = softmax(engine.run(*pad([ids, [300] * bundle.manifest.max_tokens], PAD_ID)))
    assert np.abs(padded[0] - alone[0]).max() <= 1e-5


def test_a_long_text_is_cut_and_says_so(classify: Classify, bundle: Bundle) -> None:
    (item,) = classify("一开始很喜欢，后来很失望。" * 200)
    assert item["truncated"] is True
    assert item["tokens"] > bundle.manifest.max_tokens
