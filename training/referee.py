"""The referee: character n-grams and a linear model on the same rows. A network that can't beat it is not needed.

Character 1-3-gram TF-IDF and logistic regression, from scikit-learn; its one parameter is chosen on dev, as the
network's weights are.
"""

import logging
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from lengnuan.model.text import normalise
from lengnuan.training.corpus import Corpus
from lengnuan.training.data import Example

log = logging.getLogger(__name__)

INVERSE_PENALTIES = (1.0, 4.0, 16.0)


class Referee:
    """Fitted on a corpus's training rows.

    Args:
        corpus: trains on `train`, chooses the penalty by the mean accuracy over `dev`.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._classes = len(corpus.labels.names)
        self._vectors = TfidfVectorizer(
            preprocessor=normalise, analyzer="char", ngram_range=(1, 3), min_df=1, sublinear_tf=True, dtype=np.float32
        )
        features = self._vectors.fit_transform(example.text for example in corpus.train)
        labels = [example.label for example in corpus.train]
        best = -1.0
        for inverse_penalty in INVERSE_PENALTIES:
            model = LogisticRegression(C=inverse_penalty, max_iter=200)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # 200 rounds are its budget, converged or not
                model.fit(features, labels)
            score = float(np.mean([self._accuracy(model, rows) for rows in corpus.dev.values()]))
            log.info("referee: C = %g, dev accuracy %.4f", inverse_penalty, score)
            if score > best:
                best, self._model, self.inverse_penalty = score, model, inverse_penalty
        self.dev_accuracy = best

    def probabilities(self, examples: Sequence[Example]) -> npt.NDArray[np.float64]:
        """float64 [N, K]; a class that no training row has gets 0."""
        result = np.zeros((len(examples), self._classes))
        found = self._model.predict_proba(self._vectors.transform(example.text for example in examples))
        result[:, self._model.classes_] = found
        return result

    def _accuracy(self, model: LogisticRegression, rows: Sequence[Example]) -> float:
        answers = model.predict(self._vectors.transform(example.text for example in rows))
        return float(np.mean(answers == [example.label for example in rows]))
