"""Checkpoints: whenever the process dies, a whole one is left, and only a whole one is loaded."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lengnuan.training import checkpoint
from lengnuan.training.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from lengnuan.training.config import OptimiserConfig
from lengnuan.training.errors import Interrupted, UsageError
from lengnuan.training.optimise import Optimiser


def tensors(value: float) -> dict[str, Tensor]:
    return {"weight": torch.full((3, 2), value), "step": torch.tensor(value)}


def value_and_step(folder: Path) -> tuple[float, int]:
    found = load_checkpoint(folder)
    assert found is not None
    return found[0]["weight"][0, 0].item(), found[1]["step"]


def kill(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 10, tensors(1.5), {"best": 0.9, "名": "冷暖"})
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert {name: value.tolist() for name, value in found[0].items()} == {
        name: value.tolist() for name, value in tensors(1.5).items()
    }
    assert (found[1]["step"], found[1]["best"], found[1]["名"]) == (10, 0.9, "冷暖")


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "absent") is None


def test_a_newer_one_replaces_the_older(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        save_checkpoint(tmp_path, step, tensors(step), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-100"]
    assert value_and_step(tmp_path) == (100.0, 100)


def test_the_newest_is_by_number_not_by_name(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "other", 9, tensors(9), {})
    save_checkpoint(tmp_path, 10, tensors(10), {})
    shutil.move(tmp_path / "other" / "step-9", tmp_path / "step-9")
    assert value_and_step(tmp_path) == (10.0, 10)


def test_tensors_that_are_views_are_saved_whole(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"turned": torch.arange(6.0).view(2, 3).T}, {})
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found[0]["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def tamper(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("state.json", Path.unlink),
        ("state.json", truncate),
        ("tensors.safetensors", Path.unlink),
        ("tensors.safetensors", truncate),
        ("tensors.safetensors", tamper),
    ],
)
def test_a_newest_one_that_is_not_whole_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, damage: Callable[[Path], None]
) -> None:
    save_checkpoint(tmp_path / "other", 20, tensors(20), {})
    save_checkpoint(tmp_path, 10, tensors(10), {})
    shutil.move(tmp_path / "other" / "step-20", tmp_path / "step-20")
    damage(tmp_path / "step-20" / file)
    with caplog.at_level(logging.WARNING):
        assert value_and_step(tmp_path) == (10.0, 10)
    assert "step-20 is not whole" in caplog.text


@pytest.mark.parametrize("moment", ["save_file", "_sha256", "flush"])
def test_a_death_while_saving_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    save_checkpoint(tmp_path, 10, tensors(10), {})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, moment, kill)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 20, tensors(20), {})
    assert value_and_step(tmp_path) == (10.0, 10)


def test_a_death_before_the_rename_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 10, tensors(10), {})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", kill)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 20, tensors(20), {})
    assert value_and_step(tmp_path) == (10.0, 10)
    save_checkpoint(tmp_path, 20, tensors(21), {})
    assert value_and_step(tmp_path) == (21.0, 20)


def test_the_older_one_goes_only_after_the_new_one_is_loadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 10, tensors(10), {})
    seen: list[tuple[float, int]] = []
    remove = shutil.rmtree

    def watched(path: Path, ignore_errors: bool = False) -> None:
        if path.name == "step-10":
            seen.append(value_and_step(tmp_path))
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", watched)
    save_checkpoint(tmp_path, 20, tensors(20), {})
    assert seen == [(20.0, 20)]


def test_saving_again_at_the_same_step_never_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 10, tensors(1), {})
    remove, rename = shutil.rmtree, Path.rename
    seen: list[tuple[float, int]] = []

    def removed(path: Path, ignore_errors: bool = False) -> None:
        seen.append(value_and_step(tmp_path))
        remove(path, ignore_errors=ignore_errors)

    def renamed(path: Path, target: Path) -> Path:
        seen.append(value_and_step(tmp_path))
        return rename(path, target)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", removed)
    monkeypatch.setattr(Path, "rename", renamed)
    for value in (2, 3):
        save_checkpoint(tmp_path, 10, tensors(value), {})
        assert value_and_step(tmp_path) == (value, 10)
    assert [value for value, _ in seen] == [1, 1, 2, 2, 2, 3]
    assert len(list(tmp_path.glob("step-*"))) == 1


def test_what_a_death_left_half_written_goes_with_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", kill)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 10, tensors(10), {})
    save_checkpoint(tmp_path, 12, tensors(12), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-12"]


# A stage's checkpoints


class Counter:
    """A part with a state."""

    def __init__(self) -> None:
        self.count = 0

    def state(self) -> dict[str, int]:
        return {"count": self.count}

    def restore(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def stage(folder: Path, identity: str = "rows", **parts: Counter) -> Checkpoints:
    return Checkpoints(folder, identity, Optimiser(torch.nn.Linear(2, 2), OptimiserConfig(), steps=9), **parts)


def test_every_part_gets_its_state_back(tmp_path: Path) -> None:
    saved, resumed = Counter(), Counter()
    saved.count = 7
    stage(tmp_path, counter=saved).save()
    stage(tmp_path, counter=resumed).resume()
    assert resumed.count == 7


def test_without_a_checkpoint_nothing_is_resumed(tmp_path: Path) -> None:
    counter = Counter()
    stage(tmp_path, counter=counter).resume()
    assert counter.count == 0


def test_checkpoints_of_other_rows_are_refused(tmp_path: Path) -> None:
    stage(tmp_path).save()
    with pytest.raises(UsageError, match="other rows or of another release: choose another --output"):
        stage(tmp_path, "other rows").resume()


def test_checkpoints_that_lack_a_part_are_refused(tmp_path: Path) -> None:
    stage(tmp_path).save()
    with pytest.raises(UsageError, match="another release"):
        stage(tmp_path, counter=Counter()).resume()


def test_being_stopped_saves_and_another_error_does_not(tmp_path: Path) -> None:
    for error, folder in ((Interrupted, tmp_path / "a"), (ValueError, tmp_path / "b")):
        with pytest.raises(error), stage(folder):
            raise error
    assert load_checkpoint(tmp_path / "a") is not None
    assert load_checkpoint(tmp_path / "b") is None


def test_one_is_due_after_a_while_and_not_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    checkpoints = stage(tmp_path)
    now += checkpoint.SECONDS_BETWEEN - 1
    checkpoints.save_if_due()
    assert load_checkpoint(tmp_path) is None
    now += 2
    checkpoints.save_if_due()
    assert load_checkpoint(tmp_path) is not None
    shutil.rmtree(tmp_path)
    now += 2
    checkpoints.save_if_due()
    assert load_checkpoint(tmp_path) is None


def test_saving_that_takes_long_is_done_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    checkpoints = stage(tmp_path, slow=Slow(monkeypatch))
    checkpoints.save()
    shutil.rmtree(tmp_path)
    for later, expected in ((900.0, False), (1100.0, True)):  # ten seconds are one percent of a thousand
        monkeypatch.setattr(checkpoint.time, "monotonic", lambda at=later: at)
        checkpoints.save_if_due()
        assert tmp_path.exists() is expected


class Slow(Counter):
    """Its state takes ten seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch

    def state(self) -> dict[str, int]:
        self._monkeypatch.setattr(checkpoint.time, "monotonic", lambda: 10.0)
        return super().state()
