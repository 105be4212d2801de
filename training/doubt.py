"""Beliefs that are as sure as they are right, domain by domain, so that a student learns where to doubt.

Labels are noisier in some domains than in others, and one temperature for all (`calibrate.py`) can't say so: it leaves
the answers there too sure, the others not sure enough. A network that is taught beliefs with a temperature for each
domain (Guo et al. 2017, arXiv:1706.04599, fitted on the dev rows of the domain) reads off the text how far to trust it.
"""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from lengnuan.model.probabilities import softmax
from lengnuan.training.calibrate import fit_temperature
from lengnuan.training.examples import Examples
from lengnuan.training.lesson import Probabilities

log = logging.getLogger(__name__)

ENOUGH_ROWS = 500  # of dev; a domain with fewer shares one temperature with all such domains
REST = ""  # their name here, and that of texts of no domain
_LEAST = 1e-7  # a belief of zero has no logarithm


def fit_doubt(beliefs: Probabilities, dev: Examples) -> dict[str, float]:
    """The temperature of each domain that has enough dev rows, and under `REST` that of all other rows.

    Args:
        beliefs: float32 [N, K], about the dev rows.
        dev: those rows.
    """
    domains, logits, labels = np.array(dev.domains, dtype=object), _logits(beliefs), dev.labels.astype(np.int64)
    names, counts = np.unique(domains, return_counts=True)
    large = [str(name) for name, count in zip(names, counts, strict=True) if count >= ENOUGH_ROWS]
    parts = {name: domains == name for name in large} | {REST: ~np.isin(domains, large)}
    if not parts[REST].any():  # texts without a domain may be of any of them
        parts[REST] = np.ones(len(domains), dtype=bool)
    found = {name: fit_temperature(logits[part], labels[part]) for name, part in parts.items()}
    log.info("distill: temperatures %s", {name or "other": value for name, value in found.items()})
    return found


def doubting(beliefs: Probabilities, domains: Sequence[str], temperatures: Mapping[str, float]) -> Probabilities:
    """Beliefs with the temperature of the domain, or that of `REST`.

    Args:
        beliefs: float32 [N, K].
        domains: of the first rows; those after them have none.
        temperatures: what `fit_doubt` found.

    Returns:
        float32 [N, K].
    """
    known = [temperatures.get(name, temperatures[REST]) for name in domains]
    divide = np.array(known + [temperatures[REST]] * (len(beliefs) - len(known)), dtype=np.float32)
    return softmax(_logits(beliefs) / divide[:, None]).astype(np.float32)


def _logits(beliefs: Probabilities) -> Probabilities:
    found: Probabilities = np.log(np.maximum(beliefs, _LEAST)).astype(np.float32)
    return found
