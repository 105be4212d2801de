"""The referee: character n-grams and a linear model on the same rows. A network that can't beat it is not needed.

Character 1-3-gram TF-IDF and logistic regression, from scikit-learn; its one parameter is chosen on dev, as the
network's weights are.
"""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from lengnuan.model.text import normalise
from lengnuan.training.corpus import Corpus
from lengnuan.training.examples import Example

log = logging.getLogger(__name__)

INVERSE_PENALTIES = (1.0, 4.0, 16.0)
FOLDS = 5


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
            model = self._fitted(features, labels, inverse_penalty)
            score = float(np.mean([self._accuracy(model, rows) for rows in corpus.dev.values()]))
            log.info("referee: C = %g, dev accuracy %.4f", inverse_penalty, score)
            if score > best:
                best, self._model, self.inverse_penalty = score, model, inverse_penalty
        self.dev_accuracy = best

    def probabilities(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """float64 [N, K]; a class that no training row has gets 0."""
        result = np.zeros((len(texts), self._classes))
        found = self._model.predict_proba(self._vectors.transform(texts))
        result[:, self._model.classes_] = found
        return result

    def out_of_fold(self, corpus: Corpus) -> npt.NDArray[np.float64]:
        """float64 [N, K] for the training rows, each judged by a model that was fitted without it.

        Five folds, the penalty chosen above. The n-grams' document frequencies are those of all rows.
        """
        features = self._vectors.transform(example.text for example in corpus.train)
        labels = np.array([example.label for example in corpus.train])
        result = np.zeros((len(labels), self._classes))
        for fit_on, judge in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(features, labels):
            model = self._fitted(features[fit_on], labels[fit_on], self.inverse_penalty)
            result[np.ix_(judge, model.classes_)] = model.predict_proba(features[judge])
        return result

    @staticmethod
    def _fitted(features: Any, labels: Any, inverse_penalty: float) -> LogisticRegression:
        model = LogisticRegression(C=inverse_penalty, max_iter=200)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # 200 rounds are its budget, converged or not
            model.fit(features, labels)
        return model

    def _accuracy(self, model: LogisticRegression, rows: Sequence[Example]) -> float:
        answers = model.predict(self._vectors.transform(example.text for example in rows))
        return float(np.mean(answers == [example.label for example in rows]))
