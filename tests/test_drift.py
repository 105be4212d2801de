"""Drift: other texts alarm, more of the same do not, and few rows prove nothing."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from small_runs import sentences
from tiny_bundle import write_tiny_bundle

from lengnuan.model.bundle import REFERENCE, Bundle
from lengnuan.training.commands import run
from lengnuan.training.drift import ALARM, Drift, _histogram, compare, table
from lengnuan.training.reference import Profiler, Reference, read_reference
from lengnuan.training.sketch import CELLS, Sketch, cells_of, chance_at, divergence_bits
from lengnuan.training.store import BundleStore

WEATHER = (
    "今天",
    "明天",
    "多云",
    "有雨",
    "气温",
    "下降",
    "北风",
    "局部",
    "晴朗",
    "湿度",
    "台风",
    "预报",
    "夜间",
    "十度",
)


def reviews(rows: int, seed: int) -> list[str]:
    return [text for text, _ in sentences(rows, seed)]


def forecasts(rows: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(WEATHER, k=draw.randint(3, 12))) for _ in range(rows)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.load(write_tiny_bundle(tmp_path_factory.mktemp("bundle")))


def profile_of(bundle: Bundle, texts: list[str], positive: float = 0.5) -> Reference:
    """With made-up answers: `positive` of them say so, sure to between 0.5 and 1."""
    profiler = Profiler(bundle.tokenizer, bundle.manifest.max_tokens, bundle.labels)
    profiler.add_texts(texts)
    draw = np.random.default_rng(len(texts))
    confidence = draw.uniform(0.5, 1.0, len(texts))
    best = (draw.random(len(texts)) < positive).astype(int)
    probabilities = np.stack([1.0 - confidence, confidence], axis=1)
    probabilities[best == 0] = probabilities[best == 0, ::-1]
    profiler.add_answers(probabilities, 0.6)
    return profiler.finish()


@pytest.fixture(scope="module")
def reference(bundle: Bundle) -> Reference:
    return profile_of(bundle, reviews(2000, seed=1))


# The distance


def test_the_divergence_is_zero_for_equal_and_one_bit_for_disjoint_shares() -> None:
    assert divergence_bits(np.array([0.3, 0.7]), np.array([0.3, 0.7])) == 0.0
    assert divergence_bits(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == pytest.approx(1.0)


def test_the_divergence_of_a_hand_worked_case() -> None:
    # middle (0.5, 0.5): KL of (0.75, 0.25) against it, in bits, is 1 - H(0.25) = 0.1887; the other side is the same
    assert divergence_bits(np.array([0.75, 0.25]), np.array([0.25, 0.75])) == pytest.approx(0.18872, abs=1e-5)


def test_the_allowance_of_a_histogram_is_what_chance_reaches_once_in_a_thousand() -> None:
    draw = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    over = 0
    for _ in range(3000):
        before, now = draw.multinomial(2000, shares), draw.multinomial(300, shares)
        named = [{f"<={i}": int(count) for i, count in enumerate(side)} for side in (before, now)]
        signal = _histogram("length", *named, 1.0)
        over += signal.distance is not None and signal.distance > signal.chance
    assert 0 < over < 12  # 3 expected


def test_bins_stand_in_the_order_of_their_numbers_and_labels_may_be_called_anything() -> None:
    bins = {"<=16": 1, "<=2": 1, ">16": 1}
    assert list(_histogram("length", bins, bins, 1.0).shares) == ["<=2", "<=16", ">16"]
    assert list(_histogram("labels", {"<none>": 1}, {"a": 1}, 1.0).shares) == ["<none>", "a"]


# The sketch


def test_equal_texts_fall_into_equal_cells_whatever_their_form() -> None:
    assert cells_of("ＡＢＣ服務很好").tolist() == cells_of("abc服务很好").tolist()
    assert cells_of("").size == 1


def test_cells_are_the_same_on_every_machine() -> None:
    assert cells_of("服务很好").tolist() == [1005, 102, 900, 901, 701]


def test_cells_are_used_evenly() -> None:
    draw = random.Random(0)
    texts = ("".join(chr(draw.randint(0x4E00, 0x9FA5)) for _ in range(50)) for _ in range(400))
    counts = np.bincount(np.concatenate([cells_of(text) for text in texts]), minlength=CELLS)
    assert len(counts) == CELLS
    assert counts.min() > 0.3 * counts.mean()
    assert counts.max() < 2.5 * counts.mean()


def test_a_long_text_weighs_no_more_than_a_short_one() -> None:
    sketch = Sketch()
    sketch.add("好" * 5000)
    sketch.add("差")
    assert sketch.shares().sum() == pytest.approx(1.0)
    assert sketch.shares()[cells_of("差")].sum() == pytest.approx(0.5)


def test_chance_falls_with_the_number_of_rows() -> None:
    measured = {20: 0.4, 100: 0.1, 1000: 0.012}
    values = [chance_at(measured, rows, 5000) for rows in (5, 20, 60, 100, 500, 1000, 10_000)]
    assert values == sorted(values, reverse=True)
    assert chance_at({}, 100, 3) == 1.0


def test_the_measured_chance_holds_for_fresh_samples(reference: Reference, bundle: Bundle) -> None:
    assert reference.ngrams is not None
    for rows in (30, 150):
        for seed in range(20):
            recent = profile_of(bundle, reviews(rows, seed=100 + seed)).ngrams
            assert recent is not None
            distance = divergence_bits(np.array(reference.ngrams.shares), np.array(recent.shares))
            assert distance < chance_at(reference.ngrams.chance, rows, 2000)


# The verdict


def drift_of(reference: Reference, bundle: Bundle, texts: list[str], positive: float = 0.5) -> Drift:
    return compare(reference, profile_of(bundle, texts, positive), len(set(texts)))


@pytest.mark.parametrize("rows", [1, 5, 20, 100, 1000])
def test_more_of_the_same_is_no_drift(reference: Reference, bundle: Bundle, rows: int) -> None:
    for seed in range(5):
        assert drift_of(reference, bundle, reviews(rows, seed=50 + seed)).drifted == []


def test_other_texts_are_drift(reference: Reference, bundle: Bundle) -> None:
    assert "ngrams" in drift_of(reference, bundle, forecasts(200)).drifted


def test_another_mix_of_answers_is_drift_of_the_labels_alone(reference: Reference, bundle: Bundle) -> None:
    assert drift_of(reference, bundle, reviews(1000, seed=9), positive=0.85).drifted == ["labels"]


def test_longer_texts_are_drift(reference: Reference, bundle: Bundle) -> None:
    longer = ["，".join(reviews(8, seed)) for seed in range(300)]
    assert "length" in drift_of(reference, bundle, longer).drifted


def test_one_text_again_and_again_proves_as_little_as_once(reference: Reference, bundle: Bundle) -> None:
    assert drift_of(reference, bundle, reviews(1, seed=3) * 500, positive=1.0).drifted == []


def test_the_table_says_what_moved(reference: Reference, bundle: Bundle) -> None:
    found = table(drift_of(reference, bundle, reviews(1000, seed=9), positive=0.9))
    assert "DRIFT: " in found
    assert " % of the rows" in found
    assert all(name in found for name in ALARM)


# The file


def test_a_profile_survives_its_file_and_holds_no_text(reference: Reference, tmp_path: Path) -> None:
    reference.write(tmp_path / "reference.json")
    assert read_reference(tmp_path / "reference.json") == reference
    content = (tmp_path / "reference.json").read_text(encoding="utf-8")
    assert content.isascii()
    assert len(content) < 20_000


def test_a_profile_of_an_earlier_release_has_its_lengths_alone(bundle: Bundle, tmp_path: Path) -> None:
    old = {"rows": 1000, "tokens_at_most": {"1": 0.0, "8": 0.5, "16": 0.9}, "label_share": {"negative": 1.0}}
    (tmp_path / "reference.json").write_text(json.dumps(old), encoding="utf-8")
    found = read_reference(tmp_path / "reference.json")
    assert found.counts == {"length": {"<=8": 500, "<=16": 400, ">16": 100}}
    drift = compare(found, profile_of(bundle, reviews(100, seed=2)), 100)
    assert drift.not_judged == ["unknown", "labels", "confidence", "ngrams"]
    assert "can't be judged" in table(drift)


# The commands


def write_texts(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def own_bundle(tmp_path: Path) -> Path:
    """One with a profile of reviews, made by the command."""
    folder = write_tiny_bundle(tmp_path / "bundle")
    data = write_texts(tmp_path / "a.jsonl", reviews(800, 1))
    assert run(["reference", "--bundle", str(folder), "--data", str(data)]) == 0
    return folder


def test_the_command_ends_with_12_on_drift_and_0_without(own_bundle: Path, tmp_path: Path) -> None:
    same, other = write_texts(tmp_path / "b.jsonl", reviews(300, 2)), write_texts(tmp_path / "c.jsonl", forecasts(300))
    assert run(["drift", "--bundle", str(own_bundle), "--data", str(same), "--threads", "1"]) == 0
    facts = tmp_path / "facts.json"
    assert run(["drift", "--bundle", str(own_bundle), "--data", str(other), "--json", str(facts)]) == 12
    found = json.loads(facts.read_text(encoding="utf-8"))
    assert (found["drift"], found["rows"]) == (True, 300)
    assert "ngrams" in found["drifted"]
    assert found["signals"]["ngrams"]["verdict"] == "DRIFT"


def test_the_bundle_that_an_alias_names_is_judged_too(own_bundle: Path, tmp_path: Path) -> None:
    store, bundle = BundleStore(str(tmp_path / "store")), Bundle.load(own_bundle)
    store.put(bundle, "{}")
    store.point("champion", bundle.version, None)
    data, facts = write_texts(tmp_path / "b.jsonl", reviews(300, 2)), tmp_path / "facts.json"
    named = f"{tmp_path / 'store'}@champion"
    assert run(["drift", "--bundle", named, "--data", str(data), "--threads", "1", "--json", str(facts)]) == 0
    assert json.loads(facts.read_text(encoding="utf-8"))["version"] == bundle.version
    assert run(["drift", "--bundle", f"{tmp_path / 'store'}@nobody", "--data", str(data)]) == 2


def test_a_profile_put_into_a_bundle_leaves_it_whole(own_bundle: Path) -> None:
    assert REFERENCE in Bundle.load(own_bundle).manifest.files


def test_a_bundle_in_a_store_is_not_changed(own_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (own_bundle / "decision.json").write_text("{}", encoding="utf-8")
    version = Bundle.load(own_bundle).version
    data = write_texts(tmp_path / "b.jsonl", reviews(10, 2))
    assert run(["reference", "--bundle", str(own_bundle), "--data", str(data)]) == 2
    assert "--output" in caplog.text
    assert Bundle.load(own_bundle).version == version


def test_a_profile_of_one_s_own_can_stand_in(own_bundle: Path, tmp_path: Path) -> None:
    first, later = (
        write_texts(tmp_path / "b.jsonl", forecasts(600)),
        write_texts(tmp_path / "c.jsonl", forecasts(300, 1)),
    )
    own = tmp_path / "mine.json"
    version = Bundle.load(own_bundle).version
    assert run(["reference", "--bundle", str(own_bundle), "--data", str(first), "--output", str(own)]) == 0
    assert Bundle.load(own_bundle).version == version
    assert run(["drift", "--bundle", str(own_bundle), "--data", str(later), "--reference", str(own)]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--text-column", "内容"], "no text in a column '内容'"),
        (["--reference", "nowhere.json"], "make one with `lengnuan-train reference`"),
    ],
)
def test_what_is_wrong_is_said(
    own_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: list[str], message: str
) -> None:
    data = write_texts(tmp_path / "b.jsonl", reviews(10, 2))
    assert run(["drift", "--bundle", str(own_bundle), "--data", str(data), *change]) == 2
    assert message in caplog.text


def test_a_bundle_without_a_profile_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_tiny_bundle(tmp_path / "bundle")
    data = write_texts(tmp_path / "b.jsonl", reviews(10, 2))
    assert run(["drift", "--bundle", str(folder), "--data", str(data)]) == 2
    assert "lengnuan-train reference" in caplog.text
