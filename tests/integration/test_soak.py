"""The short form of `make soak`."""

from pathlib import Path

import pytest
from soak.mix import SHARES
from soak.run import soak

pytestmark = pytest.mark.integration


def test_every_request_is_answered_once_and_everything_is_accounted_for(tmp_path: Path) -> None:
    result = soak(tmp_path, requests=3000, clients=24, seed=1)
    assert result.faults == []
    assert len({kind for kind, _ in result.account.outcomes}) == len(SHARES)
    assert {status for _, status in result.account.outcomes} >= {"200", "422", "500", "504", "left"}
    assert result.scrapes > 3
    assert min(result.reloads["reloaded"], result.reloads["refused"]) > 0
