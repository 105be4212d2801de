"""The whole job, stage by stage; each stage leaves its result in the run folder, so a stopped run goes on from there.

run folder   config.json          the settings as resolved
tokenizer.json       the sub-words
encoder.safetensors  the pretrained encoder, if there is a corpus
best.safetensors     the classifier's best weights
bundle/              what is served
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from lengnuan.model.rows import Row, UnreadableFile, read_rows
from lengnuan.model.tokenizer import Tokenizer
from lengnuan.training.assemble import Trained, make_bundle
from lengnuan.training.config import TrainConfig
from lengnuan.training.corpus import Corpus, read_corpus
from lengnuan.training.data import source_of
from lengnuan.training.errors import UsageError
from lengnuan.training.fit import build_classifier, fit, load_trained
from lengnuan.training.judge import BEST
from lengnuan.training.optimise import Hardware, choose_hardware
from lengnuan.training.pretrain import pretrain
from lengnuan.training.tokenise import train_tokenizer

log = logging.getLogger(__name__)

# These may differ between two runs in one folder: they do not change what is learnt, only where.
_MAY_DIFFER = ("threads", "device", "precision")


class Job:
    """A run of one config in one folder.

    Args:
        config: what to do.
        run_folder: made if missing.

    Raises:
        UsageError: another config has already been run in that folder.
    """

    def __init__(self, config: TrainConfig, run_folder: Path) -> None:
        self.config = config
        self.folder = run_folder
        self.hardware: Hardware = choose_hardware(config)
        run_folder.mkdir(parents=True, exist_ok=True)
        self._claim()

    def run(self) -> Path:
        """Everything, from data to bundle; returns the bundle's folder."""
        corpus = read_corpus(self.config)
        tokenizer = self.tokenizer(corpus)
        if self.config.pretrain.corpus:
            pretrain(self.config, tokenizer, self._corpus_texts(), self.folder, self.hardware)
        model, selection = fit(self.config, tokenizer, corpus, self.folder, self.hardware)
        return make_bundle(Trained(self.config, corpus, tokenizer, model, selection), self.folder)

    def pretrain(self) -> Path:
        """The encoder alone.

        Raises:
            UsageError: the config names no corpus.
        """
        if not self.config.pretrain.corpus:
            raise UsageError("config: pretrain.corpus is empty: name a file of texts, one a line")
        return pretrain(self.config, self.tokenizer(None), self._corpus_texts(), self.folder, self.hardware)

    def fit(self) -> Path:
        """The classifier's weights, from the encoder in the folder if there is one; no bundle yet."""
        corpus = read_corpus(self.config)
        fit(self.config, self.tokenizer(corpus), corpus, self.folder, self.hardware)
        return self.folder / BEST

    def export(self) -> Path:
        """The bundle, from the best weights in the folder.

        Raises:
            UsageError: no trained weights there.
        """
        corpus = read_corpus(self.config)
        tokenizer = self.tokenizer(corpus)
        model = build_classifier(self.config, tokenizer, len(corpus.labels.names), None)
        selection = load_trained(model, self.folder / BEST, allow_collapsed=self.config.fit.allow_collapsed)
        return make_bundle(Trained(self.config, corpus, tokenizer, model.eval(), selection), self.folder)

    def tokenizer(self, corpus: Corpus | None) -> Tokenizer:
        """The folder's tokenizer; if there is none, learnt first on the pretraining corpus or the training rows."""
        file = self.folder / "tokenizer.json"
        if not file.exists():
            if self.config.pretrain.corpus:
                texts = self._corpus_texts()
            else:
                texts = iter([example.text for example in (corpus or read_corpus(self.config)).train])
            train_tokenizer(texts, self.config.tokenizer).to_file(file)
        try:
            return Tokenizer.from_file(file)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def _corpus_texts(self) -> Iterator[str]:
        for path in self.config.pretrain.corpus:
            source = source_of(path, self.config.data)
            try:
                for line in read_rows(source):
                    text = line.fields.get(source.text_column) if isinstance(line, Row) else None
                    if isinstance(text, str):
                        yield text
            except (UnreadableFile, OSError) as error:
                raise UsageError(f"pretrain.corpus: {error}") from error

    def _claim(self) -> None:
        """Write config.json, or check that the one there asks for the same."""
        file = self.folder / "config.json"
        if file.exists():
            old = json.loads(file.read_text(encoding="utf-8"))
            new = self.config.model_dump(mode="json")
            for settings in (old, new):
                settings["data"].pop("root", None)
                for key in _MAY_DIFFER:
                    settings.pop(key, None)
            changed = sorted(key for key in new if new[key] != old.get(key))
            if changed:
                raise UsageError(
                    f"{self.folder} holds a run with other settings in {', '.join(changed)}: choose another --output, "
                    "or remove that folder to start again"
                )
        self.config.write(file)
