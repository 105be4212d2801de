import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from lengnuan.training.scores import (
    Scored,
    calibration_error,
    macro_f1_interval,
    margin,
    summary,
    wilson_interval,
)


def scored(labels: list[int], answers: list[int], confidence: float = 0.9, leaked: list[bool] | None = None) -> Scored:
    probabilities = np.full((len(labels), 2), 1.0 - confidence)
    probabilities[np.arange(len(labels)), answers] = confidence
    flags = np.array(leaked if leaked is not None else [False] * len(labels))
    return Scored(np.array(labels), probabilities, [f"d{i % 2}" for i in range(len(labels))], flags)


def test_wilson_interval_of_a_textbook_case() -> None:
    # 8 of 10: 0.4902 to 0.9433 (Wilson score interval without continuity correction)
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_wilson_interval_stays_inside_zero_and_one() -> None:
    assert wilson_interval(0, 5)[0] == 0.0
    assert wilson_interval(5, 5)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_figures_equal_scikit_learn_on_random_answers() -> None:
    random = np.random.default_rng(0)
    labels, answers = random.integers(0, 2, 200).tolist(), random.integers(0, 2, 200).tolist()
    found = summary(scored(labels, answers), ["negative", "positive"])
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, answers))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, answers, average="macro"))
    assert np.array(found["confusion"]).sum() == 200


def test_a_class_never_predicted_counts_as_zero_f1() -> None:
    found = summary(scored([0, 0, 1, 1], [0, 0, 0, 0]), ["negative", "positive"])
    assert found["classes"]["positive"]["f1"] == 0.0
    assert found["macro_f1"] == pytest.approx(2 / 3 / 2)


def test_a_class_without_rows_does_not_pull_macro_f1_down() -> None:
    assert summary(scored([0, 0], [0, 0]), ["negative", "positive"])["macro_f1"] == 1.0


def test_calibration_error_by_hand() -> None:
    part = scored([0, 0, 0, 1], [0, 0, 0, 0], confidence=0.95)  # confident 0.95, right 0.75
    assert calibration_error(part.labels, part.probabilities) == pytest.approx(0.2)


def test_leaked_and_clean_rows_are_scored_apart() -> None:
    found = summary(scored([0, 1, 0, 1], [0, 1, 1, 0], leaked=[True, True, False, False]), ["negative", "positive"])
    assert (found["leaked"]["accuracy"], found["clean"]["accuracy"]) == (1.0, 0.0)
    assert found["leaked"]["rows"] + found["clean"]["rows"] == found["rows"]


def test_without_leaks_there_is_no_leaked_part() -> None:
    assert "leaked" not in summary(scored([0, 1], [0, 1]), ["negative", "positive"])


def test_domains_are_scored_apart() -> None:
    found = summary(scored([0, 0, 0, 0], [0, 1, 0, 1]), ["negative", "positive"])
    assert found["domains"]["d0"]["accuracy"] == 1.0
    assert found["domains"]["d1"]["accuracy"] == 0.0


def test_macro_f1_interval_holds_the_value_and_narrows_with_rows() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, 4000)
    answers = np.where(random.random(4000) < 0.8, labels, 1 - labels)
    wide = macro_f1_interval(labels[:100], answers[:100], 2)
    narrow = macro_f1_interval(labels, answers, 2)
    value = f1_score(labels, answers, average="macro")
    assert narrow[0] < value < narrow[1]
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_margin_is_paired_and_averages_the_sources() -> None:
    model = {"a": scored([0, 0, 0, 0], [0, 0, 0, 1]), "b": scored([1, 1], [1, 1])}
    referee = {"a": scored([0, 0, 0, 0], [0, 0, 1, 1]), "b": scored([1, 1], [1, 1])}
    found = margin(model, referee)
    assert found["sources"]["a"]["margin"] == pytest.approx(0.25)
    assert found["sources"]["b"]["margin"] == 0.0
    assert found["mean"]["margin"] == pytest.approx(0.125)
    assert found["mean"]["interval"][0] < 0.125 < found["mean"]["interval"][1]


def test_a_margin_interval_by_hand() -> None:
    # 4 rows, one gained, none lost; with half a row a cell: 6 rows, 1.5 gained, 0.5 lost
    found = margin({"a": scored([0] * 4, [0, 0, 0, 0])}, {"a": scored([0] * 4, [0, 0, 0, 1])})["sources"]["a"]
    centre = (1.5 - 0.5) / 6
    half = 1.959964 * np.sqrt(1.5 + 0.5 - (1.5 - 0.5) ** 2 / 6) / 6
    assert found["margin"] == 0.25
    assert found["interval"] == pytest.approx((centre - half, centre + half))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows_prove_nothing(rows: int) -> None:
    low, high = margin({"a": scored([0] * rows, [0] * rows)}, {"a": scored([0] * rows, [1] * rows)})["mean"]["interval"]
    assert high - low > 0.4
    same_low, same_high = margin({"a": scored([0] * rows, [0] * rows)}, {"a": scored([0] * rows, [0] * rows)})["mean"][
        "interval"
    ]
    assert same_low < 0 < same_high


@pytest.mark.parametrize(
    ("labels", "answers"), [([0] * 50, [0] * 45 + [1] * 5), ([0] * 10, [0] * 10), ([0, 1], [0, 0])]
)
def test_macro_f1_and_its_interval_share_one_definition(labels: list[int], answers: list[int]) -> None:
    found = summary(scored(labels, answers), ["negative", "positive"])
    assert found["macro_f1"] == pytest.approx(f1_score(labels, answers, average="macro", zero_division=0.0))
    low, high = macro_f1_interval(np.array(labels), np.array(answers), 2)
    assert low <= found["macro_f1"] <= high
