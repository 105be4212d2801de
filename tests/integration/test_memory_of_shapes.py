"""OpenVINO prepares something for every shape it sees: its memory still stays where it is after the usual ones."""

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

BATCHES = """
import numpy as np
from lengnuan.model.bundle import DEFAULT_BUNDLE, Bundle
from lengnuan.model.opening import open_engine

bundle = Bundle.load(DEFAULT_BUNDLE.parent / "tiny")
engine = open_engine(bundle, "cpu", "openvino", "auto", threads=1)
random = np.random.default_rng(0)

def some(batches):
    for _ in range(batches):
        rows = random.choice([1, 1, 2, 3, 5, 8, 16, 32])
        lengths = np.minimum(bundle.manifest.max_tokens, 2 + random.lognormal(2.9, 0.86, rows).astype(int))
        while len(lengths) * lengths.max() > 2048:
            lengths = lengths[:-1]
        mask = np.arange(lengths.max()) < lengths[:, None]
        engine.run(random.integers(5, 5000, mask.shape), mask)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

print(some(300), some(300))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="no openvino on this platform")
def test_memory_does_not_grow_with_the_shapes_of_batches() -> None:
    run = subprocess.run([sys.executable, "-c", BATCHES], capture_output=True, text=True, check=True)
    before, after = map(int, run.stdout.split())
    assert after <= 1.05 * before
