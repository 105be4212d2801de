"""A student that learns from a teacher: the targets, the gate for teachers, and the plain student beside it."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_runs import BRIEF, sentences, small_config, write_tsv

from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.engine import score
from lengnuan.model.opening import open_engine
from lengnuan.model.probabilities import softmax
from lengnuan.training import job
from lengnuan.training.config import AugmentConfig, TrainConfig
from lengnuan.training.corpus import read_corpus
from lengnuan.training.distill import BELIEFS, distilled_lesson
from lengnuan.training.errors import UsageError
from lengnuan.training.fit import selection_of
from lengnuan.training.job import PLAIN, Job
from lengnuan.training.judge import BEST
from lengnuan.training.optimise import choose_hardware
from lengnuan.training.splits import text_key

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    write_tsv(folder / "train.tsv", sentences(200))
    Job(small_config(folder), folder / "run").fit()
    return folder / "run"


@pytest.fixture
def config(teacher: Path, tmp_path: Path) -> TrainConfig:
    """A student of that teacher, with a file of further texts: one new, one a training row, one a dev row."""
    write_tsv(tmp_path / "train.tsv", sentences(200))
    corpus = read_corpus(small_config(tmp_path))
    texts = ["屏幕太差，快递糟糕，早餐难吃。", corpus.train[0].text, corpus.dev["dev"][0].text]
    (tmp_path / "more.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return small_config(
        tmp_path, fit=BRIEF, distill={"teachers": [teacher], "texts": ["more.txt"], "weight": 0.6, "ngram_share": 0.25}
    )


def test_targets_mix_belief_and_label_and_texts_without_label_get_belief_alone(
    config: TrainConfig, tmp_path: Path
) -> None:
    corpus = read_corpus(config)
    lesson = distilled_lesson(config, corpus, tmp_path, choose_hardware(config))
    rows = len(corpus.train)
    beliefs = load_file(tmp_path / BELIEFS)["beliefs"]
    labels = np.eye(2)[[example.label for example in corpus.train]]
    assert len(lesson.texts) == rows + 1, "texts that are train or dev rows are left out"
    assert np.allclose(lesson.targets[:rows], 0.6 * beliefs[:rows] + 0.4 * labels, atol=1e-6)
    assert np.allclose(lesson.targets[rows:], beliefs[rows:], atol=1e-6)
    assert np.allclose(lesson.targets.sum(axis=1), 1.0, atol=1e-6)
    assert lesson.targets[rows, 0] > 0.7, "the teacher knows that text to be negative"
    assert text_key(lesson.texts[rows]) not in corpus.train_keys() | corpus.held_out_keys()


def test_a_bundle_teaches_what_it_answers(config: TrainConfig, tmp_path: Path) -> None:
    lesson_of = {}
    for name, folder in (("run", config.distill.teachers[0]), ("bundle", DEFAULT_BUNDLE)):
        alone = config.distill.model_copy(update={"teachers": (folder,), "ngram_share": 0.0, "weight": 1.0})
        changed = config.model_copy(update={"distill": alone})
        (tmp_path / name).mkdir()
        corpus = read_corpus(changed)
        lesson_of[name] = distilled_lesson(changed, corpus, tmp_path / name, choose_hardware(changed))
    bundle = Bundle.load(DEFAULT_BUNDLE)
    texts = lesson_of["bundle"].texts
    rows = [bundle.tokenizer.encode(text) for text in texts]
    expected = softmax(score(open_engine(bundle, "cpu"), rows, bundle.manifest.max_tokens))
    assert np.allclose(lesson_of["bundle"].targets, expected, atol=1e-3)
    assert not np.allclose(lesson_of["bundle"].targets, lesson_of["run"].targets, atol=1e-2)


def test_the_job_trains_both_students_and_ships_the_better(config: TrainConfig, tmp_path: Path) -> None:
    config = config.model_copy(update={"augment": AugmentConfig(rows=40)})
    bundle = Job(config, tmp_path / "student").run()
    assert "sentences made from templates." in (bundle / "report" / "MODEL_CARD.md").read_text("utf-8")
    found = json.loads((bundle / "report" / "metrics.json").read_text(encoding="utf-8"))["training"]
    scores = {
        "distilled": selection_of(tmp_path / "student" / BEST).best_score,
        "plain": selection_of(tmp_path / "student" / PLAIN / BEST).best_score,
    }
    assert found["dev_scores_of_students"] == scores
    assert found["best_score"] == max(scores.values())


def test_synthetic_rows_keep_their_labels_and_both_students_see_them(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons = {}
    monkeypatch.setattr(job, "fit", lambda *arguments: lessons.update({arguments[4].name: arguments[3]}))
    config = config.model_copy(update={"augment": AugmentConfig(rows=40)})
    work = Job(config, tmp_path / "student")
    with pytest.raises(UsageError, match="no trained weights"):
        work.fit()
    synthetic = work.corpus.synthetic
    assert len(synthetic) > 30
    for lesson in (lessons["student"], lessons[PLAIN]):
        assert list(lesson.texts[-len(synthetic) :]) == [row.text for row in synthetic]
        assert np.array_equal(lesson.targets[-len(synthetic) :], np.eye(2)[[row.label for row in synthetic]])
    rows = len(work.corpus.train)
    assert list(lessons["student"].texts[:rows]) == list(lessons[PLAIN].texts[:rows])
    assert not np.array_equal(lessons["student"].targets[:rows], lessons[PLAIN].targets[:rows])


def test_without_a_plain_student_there_is_one_to_fit_and_to_ship(config: TrainConfig, tmp_path: Path) -> None:
    config = config.model_copy(update={"distill": config.distill.model_copy(update={"plain_student": False})})
    work = Job(config, tmp_path / "student")
    work.fit()
    assert not (tmp_path / "student" / PLAIN).exists()
    assert work.better() == (tmp_path / "student" / BEST, {})


def test_calibrated_beliefs_have_the_temperature_that_dev_asks_for(config: TrainConfig, tmp_path: Path) -> None:
    corpus = read_corpus(config)
    beliefs = {}
    for calibrate in (False, True):
        settings = config.distill.model_copy(update={"calibrate": calibrate})
        changed = config.model_copy(update={"distill": settings})
        folder = tmp_path / str(calibrate)
        folder.mkdir()
        distilled_lesson(changed, corpus, folder, choose_hardware(changed))
        beliefs[calibrate] = load_file(folder / BELIEFS)["beliefs"]
    logits = [np.log(found[:, 1] / found[:, 0]) for found in (beliefs[False], beliefs[True])]
    temperatures = logits[0] / logits[1]
    assert temperatures == pytest.approx(temperatures[0], rel=1e-2), "all in one domain"
    assert abs(temperatures[0] - 1.0) > 0.02
    with pytest.raises(UsageError, match="other texts or teachers"):
        distilled_lesson(config, corpus, tmp_path / "True", choose_hardware(config))


def test_beliefs_are_kept_and_refused_for_other_settings(config: TrainConfig, tmp_path: Path) -> None:
    corpus = read_corpus(config)
    first = distilled_lesson(config, corpus, tmp_path, choose_hardware(config))
    made = (tmp_path / BELIEFS).stat().st_mtime_ns
    again = distilled_lesson(config, corpus, tmp_path, choose_hardware(config))
    assert (tmp_path / BELIEFS).stat().st_mtime_ns == made
    assert np.array_equal(first.targets, again.targets)
    hotter = config.model_copy(update={"distill": config.distill.model_copy(update={"temperature": 4.0})})
    with pytest.raises(UsageError, match="other texts or teachers"):
        distilled_lesson(hotter, corpus, tmp_path, choose_hardware(hotter))


@pytest.mark.parametrize(
    ("damage", "message"),
    [("best.safetensors", "no trained weights"), ("config.json", "config.json"), ("data.json", "data.json")],
)
def test_a_folder_that_is_no_teacher_is_refused(
    config: TrainConfig, teacher: Path, tmp_path: Path, damage: str, message: str
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in teacher.glob("*.*"):
        if file.is_file() and file.name != damage:
            (broken / file.name).write_bytes(file.read_bytes())
    changed = config.model_copy(update={"distill": config.distill.model_copy(update={"teachers": (broken,)})})
    with pytest.raises(UsageError, match=message):
        distilled_lesson(changed, read_corpus(changed), tmp_path, choose_hardware(changed))


@pytest.mark.parametrize("bundle", [False, True])
def test_a_teacher_with_other_labels_is_refused(config: TrainConfig, tmp_path: Path, bundle: bool) -> None:
    swapped = config.model_copy(update={"labels": {"positive": ("1",), "negative": ("0",)}})
    if bundle:
        swapped = swapped.model_copy(
            update={"distill": swapped.distill.model_copy(update={"teachers": (DEFAULT_BUNDLE,)})}
        )
    with pytest.raises(UsageError, match="answers with"):
        distilled_lesson(swapped, read_corpus(swapped), tmp_path, choose_hardware(swapped))
