"""A bundle store as training leaves it."""

import json
import os
import shutil
from pathlib import Path

from lengnuan.model.bundle import Bundle


def put(root: Path, bundle: Path) -> str:
    """Copy a bundle into the store; returns its version."""
    version = Bundle.load(bundle).version
    shutil.copytree(bundle, root / "bundles" / version)
    return version


def point(root: Path, alias: str, version: str) -> None:
    """Let an alias name a version, in one step."""
    (root / "aliases").mkdir(parents=True, exist_ok=True)
    content = {"format": 1, "bundle": version, "history": [], "changed_at": "2026-01-01T00:00:00+00:00"}
    aside = root / "aliases" / f".{alias}.writing"
    aside.write_text(json.dumps(content), encoding="utf-8")
    os.replace(aside, root / "aliases" / f"{alias}.json")
