"""Replicas that go under load, through a real nginx."""

from pathlib import Path

import pytest
from checks import tools
from checks.rolling import Plan, manifest_plan, roll

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.slow,
    pytest.mark.skipif(tools.program_path("nginx") is None, reason="nginx is missing: make deploy-check installs it"),
]


def test_sigterm_under_load_fails_no_request_while_some_still_come(tmp_path: Path) -> None:
    plan = Plan(prestop_s=0, forgotten_after_s=2, drain_delay_s=4, grace_s=40)
    traffic = roll(tmp_path / "roll", plan, requests=3000)
    assert dict(traffic.failed) == {}
    assert traffic.asked >= 3000
    assert len(traffic.answered) == 4


def test_a_replica_that_goes_at_once_is_found(tmp_path: Path) -> None:
    plan = Plan(prestop_s=0, forgotten_after_s=2, drain_delay_s=0, grace_s=40)
    assert roll(tmp_path / "roll", plan, requests=500).failed


def test_the_manifests_give_a_pod_time_enough_to_be_forgotten_and_to_end() -> None:
    plan = manifest_plan()
    assert plan.prestop_s + plan.drain_delay_s > plan.forgotten_after_s
    assert plan.grace_s > plan.prestop_s + plan.drain_delay_s
