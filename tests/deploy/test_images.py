"""What the check of the image says of one that is not as it should be; building one is `make deploy-check`'s."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from checks import images, serving_images, training_image
from checks.tools import ToolMissing
from tiny_bundle import write_tiny_bundle

pytestmark = pytest.mark.deploy

GOOD: dict[str, Any] = {
    "Size": 390_000_000,
    "Healthcheck": {"Test": ["CMD", "python3", "-c", "open('/readyz')"]},
    "Config": {
        "User": "10001:10001",
        "Entrypoint": ["lengnuan-serve"],
        "StopSignal": "SIGTERM",
        "Labels": {"org.opencontainers.image.revision": "1"},
    },
}


def test_a_good_image_has_no_problem() -> None:
    assert serving_images.looks_like_service(GOOD) == []


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("User", "0:0", "User is 0:0"),
        ("User", "", "User is ,"),
        ("Entrypoint", ["sh", "-c", "lengnuan-serve"], "Entrypoint"),
        ("StopSignal", "SIGKILL", "StopSignal"),
        ("Labels", {}, "no OCI labels"),
    ],
)
def test_a_setting_that_is_wrong_is_told(place: str, value: object, said: str) -> None:
    image = copy.deepcopy(GOOD)
    image["Config"][place] = value
    (found,) = serving_images.looks_like_service(image)
    assert said in found


def test_a_heavy_image_and_a_missing_health_check_are_told() -> None:
    found = serving_images.looks_like_service(GOOD | {"Size": 451_000_000, "Healthcheck": None})
    assert found == ["the image has 451 MB, more than 450", "no health check that asks /readyz"]


def test_without_root_it_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolMissing, match="sudo"), images.workshop(tmp_path):
        pass


def test_a_run_that_left_no_bundle_or_that_of_another_user_is_told(tmp_path: Path) -> None:
    (found,) = training_image._looks_at(tmp_path)
    assert "no bundle" in found
    (found,) = training_image._looks_at(write_tiny_bundle(tmp_path / "bundle"))
    assert f"belongs to {os.getuid()}, not 10001" in found
