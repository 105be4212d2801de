"""API keys: a TOML file of names with the hashes of their keys, read again when it changes.

```toml
[shop]                        # the name, in logs and metrics
sha256 = ["9f86d081884c…"]    # of each key that is valid for it, for instance the old one and the new one
requests_per_minute = 600     # optional, as are the next two
texts_per_minute = 60000
paths = ["/v1/"]              # what a request's path has to begin with
```

`lengnuan-key NAME` makes a key and its lines. docs/decisions.md says why SHA-256 is enough.
"""

import hashlib
import hmac
import logging
import math
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lengnuan.service.errors import Forbidden, RateLimited
from lengnuan.service.metrics import Metrics
from lengnuan.service.rates import Bucket
from lengnuan.service.settings import SettingsRefused, name_of

log = logging.getLogger(__name__)

# A changed file is noticed by the first request that comes so long after the last look.
LOOK_EVERY_S = 1.0
NAME = r"^[A-Za-z0-9_-]{1,64}$"

_Rate = Annotated[float | None, Field(gt=0.0, allow_inf_nan=False)]
_Stamp = tuple[int, int, int]


class KeyEntry(BaseModel):
    """One name of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: Annotated[tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...], Field(min_length=1)]
    requests_per_minute: _Rate = None
    texts_per_minute: _Rate = None
    paths: Annotated[tuple[Annotated[str, Field(pattern="^/")], ...], Field(min_length=1)] = ("/",)


_ENTRIES = TypeAdapter(dict[Annotated[str, Field(pattern=NAME)], KeyEntry])


@dataclass(frozen=True)
class Key:
    """Who asks, and how much is left to them."""

    name: str
    paths: tuple[str, ...]
    requests: Bucket | None
    texts: Bucket | None

    def take_request(self, path: str) -> None:
        """Let one request through.

        Raises:
            Forbidden: not on this path.
            RateLimited: too many requests.
        """
        if not path.startswith(self.paths):
            raise Forbidden(f"the key {self.name} is not for this path")
        _take(self.requests, 1, "requests")

    def take_texts(self, count: int) -> None:
        """Let so many texts through, or none of them.

        Raises:
            RateLimited: too many.
        """
        _take(self.texts, count, "texts")

    def owe_texts(self, count: int) -> float:
        """Let them through at once; returns the seconds to wait before any more."""
        return self.texts.owe(count) if self.texts else 0.0


class Keys:
    """The keys of a file, as it is now.

    Args:
        file: may be replaced at any time; while it can't be read, the keys from before stay valid.
        metrics: told whether the newest file could be read.
        rates: False refuses a file with rates: other processes would let through as much again.

    Raises:
        SettingsRefused: it can't be read or used now.
    """

    def __init__(self, file: Path, metrics: Metrics, rates: bool = True) -> None:
        self._file = file
        self._metrics = metrics
        self._stamp = _stamp(file)
        self._looked_at = time.monotonic()
        self._keys: dict[str, Key] = {}
        self._by_hash: list[tuple[str, Key]] = []
        self._rates = rates
        self._put(read_keys(file, rates))

    def find(self, presented: bytes) -> Key | None:
        """Whose key this is. Takes as long whichever it is, or none."""
        self._look()
        digest = hashlib.sha256(presented).hexdigest()
        found = None
        for stored, key in self._by_hash:
            if hmac.compare_digest(stored, digest):
                found = key
        return found

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        stamp = _stamp(self._file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._put(read_keys(self._file, self._rates))
        except SettingsRefused as error:
            self._metrics.keys_stale.set(1)
            log.error("%s; the keys from before stay valid", error)
        else:
            self._metrics.keys_stale.set(0)
            log.info("keys read again", extra={"fields": {"keys": sorted(self._keys)}})

    def _put(self, entries: dict[str, KeyEntry]) -> None:
        """Make these the valid ones. A name whose rate is the same as before gets no new allowance."""
        before = self._keys
        self._keys = {name: _key(name, entry, before.get(name)) for name, entry in entries.items()}
        self._by_hash = [(stored, self._keys[name]) for name, entry in entries.items() for stored in entry.sha256]


def read_keys(file: Path, rates: bool = True) -> dict[str, KeyEntry]:
    """The entries of a file, by name.

    Args:
        file: TOML.
        rates: False refuses entries that have some.

    Raises:
        SettingsRefused: it is missing, empty or not such a file; says where, and repeats nothing of it but names.
    """
    where = f"{name_of('keys_file')}: {file}"
    try:
        entries = _ENTRIES.validate_python(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsRefused(f"{where}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = f": {error}" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise SettingsRefused(f"{where}: not TOML in UTF-8{place}") from None
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        told = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
        raise SettingsRefused(f"{where}: {told}") from None
    if not entries:
        raise SettingsRefused(f"{where}: holds no key; `lengnuan-key NAME` makes one")
    limited = [name for name, entry in entries.items() if entry.requests_per_minute or entry.texts_per_minute]
    if limited and not rates:
        raise SettingsRefused(
            f"{where}: {limited[0]} has a rate, which {name_of('http_processes')} can't hold: each of them would let "
            "as much through; limit rates in front of the service, or use 0"
        )
    owners: dict[str, str] = {}
    for name, entry in entries.items():
        for stored in entry.sha256:
            if stored in owners:
                raise SettingsRefused(f"{where}: {name} and {owners[stored]} have the same key")
            owners[stored] = name
    return entries


def _key(name: str, entry: KeyEntry, before: Key | None) -> Key:
    requests = _bucket(entry.requests_per_minute, before.requests if before else None)
    texts = _bucket(entry.texts_per_minute, before.texts if before else None)
    return Key(name, entry.paths, requests, texts)


def _bucket(per_minute: float | None, before: Bucket | None) -> Bucket | None:
    if before is not None and before.per_minute == per_minute:
        return before
    return None if per_minute is None else Bucket(per_minute)


def _take(bucket: Bucket | None, count: int, kind: str) -> None:
    wait_s = bucket.take(count) if bucket else 0.0
    if wait_s:
        raise RateLimited(f"too many {kind} a minute for this key", retry_after_s=math.ceil(wait_s))


def _stamp(file: Path) -> _Stamp | None:
    """Differs when the file does; None when there is none. Follows links, which is how Kubernetes replaces a Secret."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
