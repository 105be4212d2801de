"""Freed memory stays with the process while a training runs."""

import subprocess
import sys

import pytest

from lengnuan.training.memory import _glibc

PROGRAM = """
import resource, sys
import torch
from lengnuan.training.memory import keep_freed_memory, trim_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(16 << 20)  # 64 MiB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    keep_freed_memory()
faults()
print(faults())
trim_memory(50)
print(faults())
"""


@pytest.mark.skipif(_glibc() is None, reason="another C library than glibc")
def test_a_block_that_is_freed_and_taken_again_costs_no_new_pages_until_it_is_trimmed() -> None:
    found = {}
    for how in ("keep", "leave"):
        run = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        found[how] = [int(line) for line in run.stdout.split()]
    pages = (64 << 20) // 4096
    kept, after_trim = found["keep"]
    assert kept < pages / 100
    assert after_trim > pages / 600  # huge pages count once for 512 of them
    assert found["leave"][0] > 5 * pages / 600
