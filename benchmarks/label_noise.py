"""Labels flipped on purpose: how many of them the queue of doubtful labels finds, and what correcting them is worth.

    python benchmarks/label_noise.py                                    built-in sentences, n-grams
    python benchmarks/label_noise.py --data FOLDER [--config FILE --work FOLDER]

FOLDER holds train, dev and test (.tsv, .csv or .jsonl, also .gz) with the columns label and text. A share of the labels
of train and of dev is flipped; test stays as it is. Every step is that of the commands: `fit --folds`, `data suspect`,
doccano's form, `data correct`. The person who checks the queue is the file as it was before. With --config the network
of that config is asked as well as the n-grams, and then the mean of both; n-grams are what is trained again, so that
queues can be compared. --work keeps the runs, and goes on with them. A `start_from` that has learnt
the labels of these rows flatters: begin with a run on other labelled texts.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from goals import Goal
from goals import lines as goal_lines
from machine import describe

from lengnuan.training.annotations import TOOLS
from lengnuan.training.augment import LABELS, generate
from lengnuan.training.config import DataConfig, TrainConfig, load_config
from lengnuan.training.convert import Fields, read_annotated
from lengnuan.training.correct import correct_file
from lengnuan.training.data import LabelSet, read_examples, read_labels, source_of
from lengnuan.training.folds import Predictor, network_beliefs, ngram_beliefs, run_folds
from lengnuan.training.job import Job
from lengnuan.training.out_of_fold import read_mean
from lengnuan.training.scores import wilson_interval
from lengnuan.training.start import shaped
from lengnuan.training.suspects import Suspect, rank, write_queue
from lengnuan.training.tables import write_table

SPLITS = ("train", "dev", "test")
SHOWN = (0.05, 0.1, 0.2)
CHECKED = 0.1  # of the texts, the first ones of the queue, are corrected
AIM = 0.6  # of the flipped labels, among those
QUEUE_FORM = TOOLS[0]

Labelled = list[tuple[str, str]]  # (text, name of the label)


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder; else built-in sentences")
    parser.add_argument("--share", type=float, default=0.1, help="of the labels that are flipped")
    parser.add_argument("--seed", type=int, default=1, help="decides which")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--config", type=Path, help="network to use besides the n-grams")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="change one setting of it")
    parser.add_argument("--work", type=Path, help="folder for the files and runs; without it they are not kept")
    arguments = parser.parse_args()
    print(describe())
    with TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        flipped = prepare(arguments.data, work, arguments.share, arguments.seed)
        plain = TrainConfig(name="n-grams", seed=arguments.seed, data=data_of(work, "noisy"))
        queues = {"n-grams": [ask("n-grams", plain, ngram_beliefs, work, arguments.folds)]}
        if arguments.config:
            config = shaped(load_config(arguments.config, arguments.set))
            config = config.model_copy(update={"data": data_of(work, "noisy")})
            queues["network"] = [ask("network", config, network_beliefs, work, arguments.folds)]
            queues["mean of both"] = queues["n-grams"] + queues["network"]
        for name, asked in queues.items():
            print(measure(name, asked, plain, work, flipped))


def data_of(work: Path, train: str) -> DataConfig:
    """The files in `work`, with one of the train files: noisy, corrected-…, or clean."""
    dev = "dev" if train == "clean" else "dev-noisy"
    return DataConfig(
        root=work.resolve(), train={"rows": Path(f"{train}.jsonl")}, dev={"dev": Path(f"{dev}.jsonl")},
        test={"test": Path("test.jsonl")},
    )  # fmt: skip


def prepare(data: Path | None, work: Path, share: float, seed: int) -> dict[str, str]:
    """Write the files; returns the true label of every text of train whose label was flipped."""
    work.mkdir(parents=True, exist_ok=True)
    parts = dict(zip(SPLITS, built_in() if data is None else [read(data, split) for split in SPLITS], strict=True))
    noisy, flipped = flip(parts["train"], share, seed)
    files = {"clean": parts["train"], "noisy": noisy, "dev": parts["dev"], "test": parts["test"]}
    files["dev-noisy"], _ = flip(parts["dev"], share, seed + 1)
    for name, rows in files.items():
        content = ({"label": label, "text": text} for text, label in rows)
        write_table(work / f"{name}.jsonl", ("label", "text"), content, "text")
    print(f"{len(noisy):,} rows to train on, {len(flipped):,} labels flipped, {len(parts['test']):,} test rows")
    return flipped


def read(folder: Path, split: str) -> Labelled:
    """The rows of a split."""
    (path,) = folder.glob(f"{split}.*")
    data = DataConfig()
    labels = LabelSet.infer(read_labels(source_of(path, data), "label"))
    rows, _ = read_examples(source_of(path, data), labels, data, "")
    return [(row.text, labels.names[row.label]) for row in rows]


def built_in() -> list[Labelled]:
    """Synthetic reviews."""
    rows = [(row.text, LABELS[row.label]) for row in generate(2400, seed=0)]
    random.Random(0).shuffle(rows)  # a sentence stands next to its opposite
    return [rows[:1600], rows[1600:1800], rows[1800:]]


def flip(rows: Labelled, share: float, seed: int) -> tuple[Labelled, dict[str, str]]:
    """Give another label to a share of the texts that occur once; and what theirs was."""
    draw = random.Random(seed)
    names = sorted({label for _, label in rows})
    chosen = set(draw.sample(range(len(rows)), round(share * len(rows))))
    noisy = [(text, draw.choice([n for n in names if n != label]) if number in chosen else label)
             for number, (text, label) in enumerate(rows)]  # fmt: skip
    return noisy, {rows[number][0]: rows[number][1] for number in sorted(chosen)}


def ask(name: str, config: TrainConfig, predictor: Predictor, work: Path, folds: int) -> Path:
    """The out-of-fold file of the noisy rows."""
    job = job_of(config, work / name / "noisy")
    figures = run_folds(job, folds, predictor, "folds")
    agreed = 100 * figures["out_of_fold"]["accuracy"]
    print(f"{name}: out of fold {agreed:.1f} % of the labels are agreed with")
    return job.folder / "folds" / "out-of-fold.jsonl"


def job_of(config: TrainConfig, run: Path) -> Job:
    """A run that goes on whatever the gate says."""
    limits = {"acknowledged": ("leaked", "conflicting", "duplicate", "shortcut", "label_shift")}
    return Job(config.model_copy(update={"gate": config.gate.model_copy(update=limits)}), run)


def measure(name: str, asked: Sequence[Path], plain: TrainConfig, work: Path, flipped: dict[str, str]) -> str:
    """The queue by the mean of these out-of-fold files, and what correcting it is worth to n-grams, as text."""
    ranked = rank(read_mean(asked))
    known = {one.text for one in ranked} & flipped.keys()
    lines = [f"{name}: {len(ranked):,} texts"]
    found = {}
    for share in SHOWN:
        first = ranked[: round(share * len(ranked))]
        hits = sum(one.text in flipped for one in first)
        found[share] = hits / len(known)
        lines.append(
            f"  first {100 * share:3.0f} % of the queue: {100 * hits / len(known):5.1f} % of the flipped labels, "
            f"{100 * hits / len(first):5.1f} % of these texts"
        )
    issues = sum(one.issue for one in ranked)
    lines.append(f"  labels that seem wrong: {issues:,} ({100 * issues / len(ranked):.1f} %)")
    correct(ranked[: round(CHECKED * len(ranked))], work, name, flipped)
    for title, train in (("flipped", "noisy"), ("corrected", f"corrected-{name}"), ("as published", "clean")):
        right, rows = tested(plain.model_copy(update={"data": data_of(work, train)}), work / "n-grams" / train)
        low, high = wilson_interval(right, rows)
        lines.append(f"  test, labels {title:13} {100 * right / rows:6.2f} ({100 * low:.2f}-{100 * high:.2f})")
    goal = Goal(f"{name}: share of the flipped labels in the first tenth", AIM, AIM, found[CHECKED])
    return "\n".join([*lines, *goal_lines([goal])])


def correct(queue: Sequence[Suspect], work: Path, name: str, flipped: dict[str, str]) -> None:
    """Write the queue, answer it with the labels as they were, and put the answers into the noisy file."""
    for file in (work / f"queue-{name}.jsonl", work / f"corrected-{name}.jsonl"):
        file.unlink(missing_ok=True)
    file = work / f"queue-{name}.jsonl"
    write_queue(queue, file, QUEUE_FORM, Fields())
    items: list[dict[str, Any]] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for item in items:
        item["label"] = [flipped.get(item["text"], item["label"][0])]
    file.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    reviewed = read_annotated(file, QUEUE_FORM, Fields(), {}, confirmed=True).rows
    data = DataConfig()
    labels = LabelSet.infer(read_labels(source_of(work / "noisy.jsonl", data), "label"))
    print(correct_file(work / "noisy.jsonl", reviewed, work / f"corrected-{name}.jsonl", data, labels))


def tested(config: TrainConfig, run: Path) -> tuple[int, int]:
    """(right answers, rows) on test of n-grams fitted to all of that data."""
    job = job_of(config, run)
    test = job.corpus.test["test"]
    beliefs, _ = ngram_beliefs(job, "whole", job.corpus, [row.text for row in test])
    return int((beliefs.argmax(axis=1) == [row.label for row in test]).sum()), len(test)


if __name__ == "__main__":
    main()
