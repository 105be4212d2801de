"""Random characters: what they are, how they are trained on, and that the check can fail."""

from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import write_tiny_bundle

from lengnuan.model.bundle import Bundle
from lengnuan.model.engine import Logits, OnnxEngine
from lengnuan.training.lesson import labelled_lesson
from lengnuan.training.nonsense import (
    CHECK_SEED,
    KINDS,
    nonsense_figures,
    nonsense_lesson,
    nonsense_lines,
    random_texts,
)


def test_the_common_characters_are_those_of_gb_2312_level_one() -> None:
    texts = random_texts("common", 3000, seed=1)
    assert all(0xB0A1 <= int.from_bytes(character.encode("gb2312")) <= 0xD7F9 for text in texts for character in text)
    assert len(set("".join(texts))) > 3700


def test_lengths_run_from_5_to_50() -> None:
    lengths = [len(text) for kind in KINDS for text in random_texts(kind, 2000, seed=1)]
    assert (min(lengths), max(lengths)) == (5, 50)


def test_a_seed_gives_the_same_texts_and_the_check_has_its_own() -> None:
    assert random_texts("any", 20, seed=3) == random_texts("any", 20, seed=3)
    assert not set(random_texts("any", 200, seed=3)) & set(random_texts("any", 200, CHECK_SEED))


def test_random_texts_are_to_be_answered_evenly_and_join_other_rows() -> None:
    found = labelled_lesson([], 3) + nonsense_lesson(5, 3, seed=1)
    assert len(found.texts) == 5
    np.testing.assert_allclose(found.targets, 1 / 3)
    assert nonsense_lesson(0, 2, seed=1).targets.shape == (0, 2)


class Sure:
    """An engine that answers everything with the same logits."""

    precision = "float32"

    def __init__(self, margin: float) -> None:
        self._margin = margin

    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> Logits:
        return np.tile(np.array([0.0, self._margin], dtype=np.float32), (len(token_ids), 1))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return Bundle.load(write_tiny_bundle(tmp_path_factory.mktemp("bundle")))


@pytest.mark.parametrize(("margin", "passed"), [(1.38, True), (1.39, False)])  # 0.799 and 0.801
def test_the_check_passes_below_a_confidence_of_0_8_only(bundle: Bundle, margin: float, passed: bool) -> None:
    found = nonsense_figures(bundle.tokenizer, Sure(margin), 8, 1.0)
    assert found["passed"] is passed
    assert ("NOT passed" in nonsense_lines(found)) is not passed


def test_the_temperature_counts(bundle: Bundle) -> None:
    assert nonsense_figures(bundle.tokenizer, Sure(4.0), 8, 4.0)["passed"]


def test_a_model_that_knows_two_characters_is_not_sure_of_the_others(bundle: Bundle, tmp_path: Path) -> None:
    engine = OnnxEngine(bundle.model_file, "cpu", 1)
    assert nonsense_figures(bundle.tokenizer, engine, 8, 1.0)["common"]["below_limit"] > 0.9
