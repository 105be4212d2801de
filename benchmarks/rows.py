"""How much memory a training takes as the rows grow: `python benchmarks/rows.py [ROWS ...]`.

Each number of rows is measured in a process of its own, on a file of distinct short texts that is made for it: reading,
checking and splitting; tokens; the plan of the steps; one step. Peaks of resident memory, from Linux's /proc.
"""

import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lengnuan.training.augment import generate

ROWS = (100_000, 500_000)
TOKENIZER_ROWS = 20_000


def write_rows(path: Path, rows: int) -> None:
    """Texts of 12 to 20 characters: two pieces of other sentences, and a few characters that make each its own."""
    draw = random.Random(0)
    pieces = [example.text for example in generate(4000, seed=0)]
    with path.open("w", encoding="utf-8") as file:
        file.write("label\ttext\n")
        for number in range(rows):
            first, second = (draw.choice(pieces)[:6] for _ in range(2))
            own = "".join(chr(0x4E00 + number // 1000**place % 1000) for place in range(3))
            file.write(f"{number % 2}\t{first}{own}{second}{draw.choice(pieces)[: draw.randrange(6)]}\n")


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Print the time that it took, and the highest resident memory meanwhile."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak is counted from here
    start = time.monotonic()
    yield
    peak = int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))[0])
    sys.stdout.write(f"  {name:22} {peak / 1024:8,.0f} MB {time.monotonic() - start:8.1f} s\n")
    sys.stdout.flush()


def measure(file: Path) -> None:
    """One line a stage, of this process."""
    with stage("imports"):
        import itertools

        import numpy as np

        from lengnuan.training.batches import Collator, draw_seed
        from lengnuan.training.config import TrainConfig
        from lengnuan.training.corpus import read_corpus
        from lengnuan.training.fit import Exercise, build_classifier, encode_texts, plan_steps
        from lengnuan.training.lesson import labelled_lesson
        from lengnuan.training.losses import objective_for
        from lengnuan.training.optimise import Optimiser, choose_hardware
        from lengnuan.training.tokenise import train_tokenizer

    content = {"name": "rows", "data": {"root": file.parent, "train": {"rows": file.name}}}
    config = TrainConfig.model_validate(content | {"fit": {"epochs": 1}, "precision": "float32", "device": "cpu"})
    with stage("read, check, split"):
        corpus = read_corpus(config)
    with stage("sub-words"):
        tokenizer = train_tokenizer(itertools.islice(corpus.train.texts, TOKENIZER_ROWS), config.tokenizer)
    with stage("tokens and plan"):
        lesson = labelled_lesson(corpus.train, 2)
        rows, _ = encode_texts(tokenizer, lesson.texts, config.model.max_tokens)
        steps, _ = plan_steps(rows, config)
    with stage("a step"):
        hardware = choose_hardware(config)
        model = build_classifier(config, tokenizer, 2, None)
        optimiser = Optimiser(model, config.fit.optimiser, len(steps), config.fit.ema_decay)
        exercise = Exercise(model, objective_for(config.fit, lesson.targets, hardware.device), config.fit, hardware)
        collate = Collator(rows, lesson.targets, hardware.device)
        exercise.descend([collate(indices, draw_seed(1, 0, indices)) for indices in steps[0]], optimiser)
        optimiser.update()
    sys.stdout.write(f"  {len(corpus.train):,} training rows, {np.mean(rows.lengths):.1f} tokens each\n")


def main() -> None:
    """Without a number: some that take a minute."""
    if "--measure" in sys.argv:
        measure(Path(sys.argv[-1]))
        return
    for rows in [int(argument) for argument in sys.argv[1:]] or ROWS:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "rows.tsv"
            write_rows(file, rows)
            sys.stdout.write(f"{rows:,} rows, {file.stat().st_size / 1e6:.0f} MB of text\n")
            sys.stdout.flush()
            subprocess.run([sys.executable, __file__, "--measure", str(file)], check=True)


if __name__ == "__main__":
    main()
