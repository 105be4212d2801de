"""A keys file, as tests write it."""

import hashlib
import json
import os
from pathlib import Path


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def entry(name: str, *valid: str, more: str = "") -> str:
    return f"[{name}]\nsha256 = {json.dumps([hashed(key) for key in valid])}\n{more}\n"


def write_keys(folder: Path, *entries: str) -> Path:
    """As Kubernetes does it: the new file is another one, put in the place of the old at once."""
    aside = folder / "keys.writing"
    aside.write_text("".join(entries), encoding="utf-8")
    os.replace(aside, folder / "keys.toml")
    return folder / "keys.toml"


def bearer(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {key}"}
