import json
from pathlib import Path

from lengnuan.training.plots import confusion, training_curve


def test_chinese_class_names_stay_text_in_the_picture() -> None:
    picture = confusion([[8, 2], [1, 9]], ["投诉", "表扬"])
    assert picture.startswith("<svg")
    assert "投诉" in picture
    assert "表扬" in picture


def test_equal_counts_give_equal_pictures() -> None:
    assert confusion([[1, 0], [0, 1]], ["a", "b"]) == confusion([[1, 0], [0, 1]], ["a", "b"])


def test_a_run_without_steps_has_no_training_curve(tmp_path: Path) -> None:
    dev = {"stage": "fit", "step": 0, "dev_accuracy": 0.9}
    log = tmp_path / "metrics.jsonl"
    log.write_text(json.dumps(dev) + "\n", encoding="utf-8")
    assert training_curve(log) is None
    steps = [{"stage": "fit", "step": step, "loss": 1 / step} for step in (20, 40)]
    log.write_text("".join(json.dumps(row) + "\n" for row in [*steps, dev]), encoding="utf-8")
    picture = training_curve(log)
    assert picture is not None
    assert picture.startswith("<svg")
