"""The read side of a bundle store: a folder of bundles that never change, and aliases that say which of them is meant.

```
ROOT/bundles/VERSION/       a whole bundle; VERSION is `Bundle.version`
ROOT/aliases/NAME.json      {"format": 1, "bundle": VERSION, "history": [older versions], "changed_at": time}
```

Where a bundle's folder is asked for, `ROOT@NAME` is the bundle that an alias of a store names at that moment.
"""

import json
import re
from pathlib import Path

from lengnuan.model.bundle import Bundle
from lengnuan.model.errors import BundleRefused

FORMAT = 1
BUNDLES = "bundles"
ALIASES = "aliases"
# An alias file holds one version and twenty older ones. More is no alias, and not to be read into memory.
LARGEST_ALIAS_BYTES = 1 << 16

ALIAS_NAME = re.compile(r"[a-z0-9_-]{1,64}")
BUNDLE_VERSION = re.compile(r"[0-9a-f]{12}")


def load_bundle(where: Path) -> Bundle:
    """Read and check the bundle that was given as a folder or as `ROOT@NAME`.

    Raises:
        BundleRefused: see `alias_target` and `Bundle.load`; or a store holds it under another bundle's version.
    """
    folder = bundle_folder(where)
    bundle = Bundle.load(folder)
    if folder != where and bundle.version != folder.name:
        raise BundleRefused(f"{folder}: holds version {bundle.version}; bundles of a store never change: put it anew")
    return bundle


def bundle_folder(where: Path) -> Path:
    """The folder of a bundle that was given as a folder or as `ROOT@NAME`. Whether a bundle is in it, nobody looks.

    Raises:
        BundleRefused: see `alias_target`.
    """
    store = store_alias(where)
    return where if store is None else alias_target(*store)


def store_alias(where: Path) -> tuple[Path, str] | None:
    """As `split_alias`, for a store that is a folder."""
    store = split_alias(str(where))
    return None if store is None else (Path(store[0]), store[1])


def split_alias(where: str) -> tuple[str, str] | None:
    """Root, maybe a URL, and alias of a `ROOT@NAME`; None for a folder, also one that has an @ in its name."""
    root, sign, alias = where.rpartition("@")
    return (root, alias) if sign and root and not Path(where).is_dir() else None


def alias_target(root: Path, alias: str) -> Path:
    """The folder of the bundle that an alias of a store names now.

    Raises:
        BundleRefused: no such alias, an alias file that can't be read, or a bundle that isn't there; says what to do.
    """
    if not ALIAS_NAME.fullmatch(alias):
        raise BundleRefused(f"{root}: an alias has only a-z, 0-9, _ and - in its name, unlike {alias!r}")
    version = _version_of(root, alias)
    target = root / BUNDLES / version
    if not target.resolve().is_relative_to(root.resolve()):
        raise BundleRefused(f"{target}: leads out of the store; put the bundle itself there, not a link")
    if not target.is_dir():
        raise BundleRefused(f"{target}: {alias} names this bundle, and it is not there; put it there or move the alias")
    return target


def _version_of(root: Path, alias: str) -> str:
    file = root / ALIASES / f"{alias}.json"
    try:
        with file.open("rb") as stream:
            content = json.loads(stream.read(LARGEST_ALIAS_BYTES))
    except FileNotFoundError as error:
        known = sorted(entry.stem for entry in (root / ALIASES).glob("*.json") if ALIAS_NAME.fullmatch(entry.stem))
        message = f"it has {', '.join(known)}" if known else "it has none, or is no store"
        raise BundleRefused(f"{root}: no alias {alias} in this store; {message}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise BundleRefused(f"{file}: not a readable alias ({error}); point the alias anew") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise BundleRefused(f"{file}: format {found}, this release reads {FORMAT}")
    version = content.get("bundle")
    if not (isinstance(version, str) and BUNDLE_VERSION.fullmatch(version)):
        raise BundleRefused(f"{file}: `bundle` is no version (12 hex digits); point the alias anew")
    return version
