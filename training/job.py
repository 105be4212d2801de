"""The whole job, stage by stage; each stage leaves its result in the run folder, so a stopped run goes on from there.

run folder   config.json          the settings as resolved
tokenizer.json       the sub-words
start.safetensors    the encoder that `start_from` gave, if it is set
encoder.safetensors  the pretrained encoder, if there is a corpus
beliefs.safetensors  what the teachers believe, if there are any; then also plain/, the student without them
best.safetensors     the classifier's best weights
effort.jsonl         time and energy spent
bundle/              what is served
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lengnuan.model.bundle import TOKENIZER
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.assemble import Trained, make_bundle
from lengnuan.training.average import average, average_tokenizer
from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus, read_corpus
from lengnuan.training.data import read_texts, source_of
from lengnuan.training.distill import BELIEFS, distilled_lesson
from lengnuan.training.distributed import from_first
from lengnuan.training.effort import measured
from lengnuan.training.errors import UsageError
from lengnuan.training.files import write_text
from lengnuan.training.fit import build_classifier, fit, load_trained, selection_of
from lengnuan.training.gate import refuse
from lengnuan.training.judge import BEST
from lengnuan.training.lesson import labelled_lesson
from lengnuan.training.nonsense import made_lesson
from lengnuan.training.optimise import Hardware, choose_hardware
from lengnuan.training.pretrain import pretrain
from lengnuan.training.splits import text_key
from lengnuan.training.spread import SEEDS, read_seeds
from lengnuan.training.start import ENCODER, START, start_from
from lengnuan.training.tokenise import train_tokenizer
from lengnuan.training.tracking import check_tracking, publish_bundle, tracked

log = logging.getLogger(__name__)

PLAIN = "plain"

# Settings that do not decide what is learnt, so a run folder may be used again with others.
_FREE: dict[str, Any] = {
    **dict.fromkeys(("name", "threads", "device", "display_names", "sources", "licences"), True),
    **dict.fromkeys(("export", "gate", "tracking"), True),
    **{"data": {"root"}, "fit": {"allow_collapsed"}},
}


class Job:
    """A run of one config in one folder. Of processes that train together the first alone looks at files.

    Args:
        config: what to do; the first process's counts.
        run_folder: made if missing.

    Raises:
        UsageError: another config has already been run in that folder, or `[tracking]` needs what isn't installed.
    """

    def __init__(self, config: TrainConfig, run_folder: Path) -> None:
        def checked() -> TrainConfig:
            check_tracking(config)
            return config

        self.config = from_first(checked)
        self.folder = run_folder
        self.hardware: Hardware = choose_hardware(self.config)
        from_first(self._claim)

    def run(self) -> Path:
        """Everything, from data to bundle; returns the bundle's folder."""
        self.prepare()
        self.fit()
        return from_first(self.export)

    def prepare(self) -> None:
        """The rows, the sub-words and, if there is a corpus, the pretrained encoder: all that training begins with."""
        tokenizer = from_first(lambda: self._begin()[1])
        if self.config.pretrain.corpus and not self.config.average:
            self._pretrain(tokenizer)

    def member(self, name: str, config: TrainConfig, corpus: Corpus) -> "Job":
        """A run of its own in the sub-folder `name`, that begins with what this one has prepared.

        Args:
            name: of the sub-folder.
            config: what to do there.
            corpus: the rows there.

        Raises:
            UsageError: another config, or other rows, have already been run in that folder.
        """
        job = Job(config, self.folder / name)
        from_first(lambda: self._link((TOKENIZER, START, ENCODER, BELIEFS), job.folder))
        job.corpus = corpus
        from_first(lambda: job.claim_rows(corpus.facts["identity"]))
        return job

    def pretrain(self) -> Path:
        """The encoder alone.

        Raises:
            UsageError: the config names no corpus.
        """
        if not self.config.pretrain.corpus:
            raise UsageError("config: pretrain.corpus is empty: name a file of texts, one a line")
        return self._pretrain(from_first(self.tokenizer))

    def _pretrain(self, tokenizer: Tokenizer) -> Path:
        with measured(self.folder, "pretrain"), tracked(self.config, self.folder):
            return pretrain(self.config, tokenizer, self.corpus_texts(), self.folder, self.hardware)

    def fit(self) -> Path:
        """The classifier's weights, from the encoder in the folder if there is one; no bundle yet.

        Raises:
            UsageError: the folder's run has several seeds.
        """
        corpus, tokenizer = from_first(self._begin_fit)
        self._fit(tokenizer, corpus)
        return from_first(self.better)[0]

    def _begin_fit(self) -> tuple[Corpus, Tokenizer]:
        if (self.folder / SEEDS).exists():
            raise UsageError(f"{self.folder} holds a run with several seeds: give --seeds, or choose another --output")
        return self._begin()

    def _begin(self) -> tuple[Corpus, Tokenizer]:
        return self.corpus, self.tokenizer()

    def _fit(self, tokenizer: Tokenizer, corpus: Corpus) -> None:
        """The classifier; with teachers also a plain one, so that what they bring is measured, not believed."""
        if self.config.average:
            from_first(lambda: average(self.config, tokenizer, corpus, self.folder, self.hardware))
            return
        with measured(self.folder, "fit"), tracked(self.config, self.folder):
            self._learn(tokenizer, corpus)

    def _learn(self, tokenizer: Tokenizer, corpus: Corpus) -> None:
        made = made_lesson(self.config, corpus)
        plain = labelled_lesson(corpus.train, len(corpus.labels.names)) + made
        if not self.config.distill.teachers:
            fit(self.config, tokenizer, corpus, plain, self.folder, self.hardware)
            return
        # What was made to have a label needs no teacher's opinion.
        lesson = from_first(lambda: distilled_lesson(self.config, corpus, self.folder, self.hardware)) + made
        fit(self.config, tokenizer, corpus, lesson, self.folder, self.hardware)
        if not self.config.distill.plain_student:
            return
        from_first(lambda: self._link((ENCODER, START), self.folder / PLAIN))
        fit(self.config, tokenizer, corpus, plain, self.folder / PLAIN, self.hardware)

    def _link(self, names: Sequence[str], folder: Path) -> None:
        """Begin the run in `folder` with those of these files that this one has."""
        folder.mkdir(exist_ok=True)
        for name in names:
            if (self.folder / name).exists() and not (folder / name).exists():
                os.link(self.folder / name, folder / name)

    def better(self) -> tuple[Path, dict[str, float]]:
        """The weights with the better dev score, distilled or plain, and the score of each; or the runs' average."""
        if self.config.average:
            return self.folder / BEST, {run.name: selection_of(run / BEST).best_score for run in self.config.average}
        files = {"distilled": self.folder / BEST, "plain": self.folder / PLAIN / BEST}
        if not self.config.distill.teachers or not self.config.distill.plain_student:
            return files["distilled"], {}
        scores = {name: selection_of(file).best_score for name, file in files.items()}
        better = max(scores, key=lambda name: scores[name])
        log.info("fit: dev of the student %s; the %s one is kept", scores, better)
        return files[better], scores

    def export(self) -> Path:
        """The bundle, from the best weights in the folder.

        Raises:
            UsageError: no trained weights there.
        """
        corpus, tokenizer = self.corpus, self.tokenizer()
        model = build_classifier(self.config, tokenizer, len(corpus.labels.names), None)
        best, students = self.better()
        selection = load_trained(model, best, allow_collapsed=self.config.fit.allow_collapsed)
        seeds = read_seeds(self.folder)
        trained = Trained(self.config, corpus, tokenizer, model.eval(), selection, students, seeds)
        bundle = make_bundle(trained, self.folder)
        publish_bundle(self.config, self.folder, bundle)
        return bundle

    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer; if there is none, that of `average` or `start_from`, or one learnt on the texts."""
        file = self.folder / TOKENIZER
        if not file.exists() and self.config.average:
            average_tokenizer(self.config.average).to_file(file)
        elif not file.exists() and self.config.start_from:
            start_from(self.config.start_from, self.folder)
        elif not file.exists():
            rows = (example.text for example in self.corpus.train)
            train_tokenizer(
                self.corpus_texts() if self.config.pretrain.corpus else rows, self.config.tokenizer
            ).to_file(file)
        try:
            return Tokenizer.from_file(file)
        except ValueError as error:
            raise UsageError(str(error)) from error

    @cached_property
    def corpus(self) -> Corpus:
        """The labelled rows; refused when they are not those that the folder's run began with.

        Raises:
            UsageError: labels, rows or splits have changed.
            DataRefused: the data is past a limit of `[gate]` that isn't acknowledged.
        """
        corpus = read_corpus(self.config)
        refuse(corpus.gate)
        self.claim_rows(corpus.facts["identity"])
        return corpus

    def claim_rows(self, identity: dict[str, Any]) -> None:
        """Write data.json, or check that the one there is of the same labels, rows and splits.

        Raises:
            UsageError: it is not.
        """
        file = self.folder / "data.json"
        if file.exists() and json.loads(file.read_text(encoding="utf-8")) != identity:
            raise UsageError(
                f"{self.folder} holds a run on other labels or rows: choose another --output to train on these, "
                "or remove that folder to start again"
            )
        write_text(file, json.dumps(identity, ensure_ascii=False) + "\n")

    def corpus_texts(self) -> Iterator[str]:
        """The pretraining texts, without those that are dev or test rows (unless the config keeps leaks)."""
        drop = self.config.data.drop_leaked and bool(self.config.data.train)
        held_out = self.corpus.held_out_keys() if drop else set()
        dropped = 0
        for path in self.config.pretrain.corpus:
            for text in read_texts(source_of(path, self.config.data)):
                if held_out and text_key(text) in held_out:
                    dropped += 1
                else:
                    yield text
        log.info("pretraining corpus: %d texts dropped that are dev or test rows", dropped)

    def _claim(self) -> None:
        """Make the folder and write config.json, or check that the one there asks for the same training."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "config.json"
        if file.exists():
            try:
                old = TrainConfig.model_validate_json(file.read_bytes())
            except ValidationError as error:
                raise UsageError(f"{file} is of another release: choose another --output") from error
            changed = {key for key, _ in _decisive(self.config).items() ^ _decisive(old).items()}
            if changed:
                raise UsageError(
                    f"{self.folder} holds a run with another {', '.join(sorted(changed))}: choose another --output, "
                    "or remove that folder to start again"
                )
        self.config.write(file)


def _decisive(config: TrainConfig) -> dict[str, str]:
    """Every setting that decides what is learnt, as dotted key and JSON text."""
    found: dict[str, str] = {}

    def collect(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value and prefix != "labels.":  # the order of the labels counts
            for key, inner in value.items():
                collect(f"{prefix}{key}.", inner)
        else:
            found[prefix.rstrip(".")] = json.dumps(value, ensure_ascii=False)

    collect("", config.model_dump(mode="json", exclude=_FREE))
    return found
