"""Freed memory stays with the process while a training runs."""

import subprocess
import sys

import pytest

from lengnuan.training.memory import _glibc

PROGRAM = """
import random, resource, sys
import torch
from lengnuan.training.memory import keep_freed_memory, trim_memory

def faults():
    sizes = random.Random(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [torch.ones(sizes.randrange(1 << 18, 16 << 20)) for _ in range(6)]  # up to 64 MiB each, freed together
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    keep_freed_memory()
faults()
print(faults())
trim_memory(50)
print(faults())
"""


@pytest.mark.skipif(_glibc() is None, reason="another C library than glibc")
def test_blocks_that_are_freed_and_taken_again_cost_few_new_pages_until_they_are_trimmed() -> None:
    found = {}
    for how in ("keep", "leave"):
        run = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        found[how] = [int(line) for line in run.stdout.split()]
    (kept, after_trim), (left, _) = found["keep"], found["leave"]
    assert kept < left / 10
    assert after_trim > left / 20
