"""Beliefs as sure as they are right, domain by domain."""

import numpy as np
import pytest

from lengnuan.training.doubt import ENOUGH_ROWS, REST, doubting, fit_doubt
from lengnuan.training.examples import Example, Examples

SURE = 0.9


def dev_of(*domains: tuple[str, int, float]) -> tuple[Examples, np.ndarray]:
    """Rows (domain, how many, share that is right) about which somebody is sure by 0.9, in turns of either label."""
    rows, beliefs = [], []
    for domain, count, right in domains:
        for number in range(count):
            believed = number % 2
            label = believed if number < right * count else 1 - believed
            rows.append(Example(f"{domain} {number}", label, domain))
            beliefs.append([1 - SURE, SURE] if believed else [SURE, 1 - SURE])
    return Examples(rows), np.array(beliefs, dtype=np.float32)


def test_a_domain_with_wrong_labels_is_doubted_and_the_others_are_not() -> None:
    dev, beliefs = dev_of(("noisy", 1000, 0.7), ("clean", 1000, 0.98))
    found = fit_doubt(beliefs, dev)
    taught = doubting(beliefs, dev.domains, found)
    confidence = taught.max(axis=1)
    assert confidence[:1000].mean() == pytest.approx(0.7, abs=0.01)
    assert confidence[1000:].mean() == pytest.approx(0.98, abs=0.01)
    assert (taught.argmax(axis=1) == beliefs.argmax(axis=1)).all()
    assert taught.sum(axis=1) == pytest.approx(1.0)
    assert taught.dtype == np.float32


def test_small_domains_and_texts_of_none_share_a_temperature() -> None:
    small = ENOUGH_ROWS // 2
    dev, beliefs = dev_of(("large", 1000, 0.98), ("small", small, 0.6), ("other", small, 0.8))
    found = fit_doubt(beliefs, dev)
    assert found.keys() == {"large", REST}
    taught = doubting(beliefs[:3], ["small", "unheard of"], found)
    assert taught.max(axis=1) == pytest.approx(0.7, abs=0.01)


def test_where_every_domain_is_large_texts_of_none_get_the_mean_of_all() -> None:
    dev, beliefs = dev_of(("noisy", 1000, 0.7), ("clean", 1000, 0.98))
    taught = doubting(beliefs[:1], [], fit_doubt(beliefs, dev))
    assert taught.max() == pytest.approx(0.84, abs=0.01)


def test_a_belief_of_nothing_at_all_stays_a_number() -> None:
    dev, _ = dev_of(("one", 1000, 0.9))
    certain = np.eye(2, dtype=np.float32)[dev.labels]
    taught = doubting(certain, dev.domains, fit_doubt(certain, dev))
    assert np.isfinite(taught).all()
