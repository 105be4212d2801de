import pytest

from lengnuan.training.spread import seed_figures, seeds_sentence, seeds_table, seeds_text, spread

SOURCES = {3: {"hotel": 0.90, "books": 0.70}, 4: {"hotel": 0.94, "books": 0.78}, 5: {"hotel": 0.92, "books": 0.74}}
SCORES = {3: 0.80, 4: 0.86, 5: 0.83}


def test_mean_sample_deviation_and_least() -> None:
    assert spread([1.0, 2.0, 6.0]) == pytest.approx({"mean": 3.0, "sd": 7**0.5, "min": 1.0})
    assert spread([0.5]) == {"mean": 0.5, "sd": 0.0, "min": 0.5}


def test_every_dev_source_has_its_own_spread() -> None:
    found = seed_figures("accuracy", SCORES, SOURCES)
    assert found["scores"] == {"3": 0.80, "4": 0.86, "5": 0.83}
    assert found["sources"]["books"]["min"] == 0.70
    assert found["sources"]["books"]["mean"] == pytest.approx(0.74)
    assert found["sources"]["hotel"]["sd"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("scores", "median"),
    [
        ({1: 0.9, 2: 0.7, 3: 0.8}, 3),
        ({1: 0.9, 2: 0.7, 3: 0.8, 4: 0.6}, 2),  # of the two in the middle the lower
        ({1: 0.5, 2: 0.8, 3: 0.8, 4: 0.8}, 2),
        ({5: 0.9, 6: 0.7}, 6),
    ],
)
def test_the_median_is_kept_never_the_luckier(scores: dict[int, float], median: int) -> None:
    assert seed_figures("accuracy", scores, {seed: {} for seed in scores})["median_seed"] == median


def test_a_report_says_how_much_is_luck() -> None:
    figures = {"seeds": seed_figures("macro_f1", SCORES, SOURCES)}
    assert seeds_sentence(figures) == (
        "Of 3 seeds: dev macro-f1 83.00 % on average, standard deviation 3.00 points, least 80.00 %. "
        "This is the median one, seed 5."
    )
    head, rows = seeds_table(figures)
    assert head == ["dev source", "seed 3 %", "seed 4 %", "seed 5 %", "mean %", "sd", "least %"]
    assert rows[1] == ["books", "70.00", "78.00", "74.00", "74.00", "4.00", "70.00"]
    assert rows[2][0] == "mean of the sources"
    assert len(seeds_text(figures).splitlines()) == 4


def test_one_seed_has_nothing_to_say() -> None:
    assert seeds_sentence({}) == ""
