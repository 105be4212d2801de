"""The write side of a bundle store, in a folder or in S3-compatible storage (docs/promotion.md has the layout).

bundles/VERSION/    a bundle that never changes; its manifest is written last, so without it there is none yet
aliases/NAME.json   which version NAME means, and which it meant before; changed in one step, and only by whoever
                    knows what it says now
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from lengnuan.model.bundle import MANIFEST, Bundle
from lengnuan.model.store import ALIAS_NAME, ALIASES, BUNDLE_VERSION, BUNDLES, FORMAT
from lengnuan.training.errors import StoreBusy, UsageError
from lengnuan.training.files import copy_file, write_text
from lengnuan.training.s3 import connect, is_remote, reached

DECISION = "decision.json"
KEPT = 20  # older versions that an alias remembers

_LOST_RACE = ("PreconditionFailed", "ConditionalRequestConflict")


@dataclass(frozen=True)
class Alias:
    """What an alias names, and named before (newest first). `etag`: that of the object it was read from, on S3."""

    bundle: str
    history: tuple[str, ...] = ()
    changed_at: str = ""
    etag: str = ""

    def text(self) -> str:
        """The content of its file."""
        content = {"format": FORMAT, "bundle": self.bundle, "history": self.history, "changed_at": self.changed_at}
        return json.dumps(content, indent=2) + "\n"


class BundleStore:
    """A store.

    Args:
        root: a folder, or `s3://bucket/prefix`.

    Raises:
        UsageError: neither of them, or s3fs is not installed.
    """

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or root
        self._remote = is_remote(root)
        if not self._remote and "://" in root:
            raise UsageError(f"{root}: a store is a folder or s3://bucket/prefix")
        self._files, self._path = connect(self.root)

    def folder_of(self, version: str) -> str:
        """Where a bundle is, as a path or URL."""
        return f"{self.root}/{BUNDLES}/{version}"

    def aliases(self) -> dict[str, Alias]:
        """Every alias."""
        names = [name.removesuffix(".json") for name in self._listed(ALIASES) if name.endswith(".json")]
        found = {name: self.alias(name) for name in sorted(names) if ALIAS_NAME.fullmatch(name)}
        return {name: alias for name, alias in found.items() if alias}

    def alias(self, name: str) -> Alias | None:
        """What the alias names now; None where there is none.

        Raises:
            UsageError: no name of an alias, or a file that is none.
            StoreBusy: no answer from the store.
        """
        if not ALIAS_NAME.fullmatch(name):
            raise UsageError(f"an alias has only a-z, 0-9, _ and - in its name, unlike {name!r}")
        path = f"{self._path}/{ALIASES}/{name}.json"
        try:
            with self._reached():
                # Before the content: an alias that is changed in between then fails the comparison, and not the reader.
                etag = self._files.info(path).get("ETag", "")
                content = self._files.cat_file(path)
        except FileNotFoundError:
            return None
        return _parsed(content, f"{self.root}/{ALIASES}/{name}.json", etag)

    def versions(self) -> dict[str, bool]:
        """Every bundle, and whether it is there with its manifest."""
        found = [name for name in self._listed(BUNDLES) if BUNDLE_VERSION.fullmatch(name)]
        return {name: self._there(f"bundles/{name}/{MANIFEST}") for name in sorted(found)}

    def put(self, bundle: Bundle, decision: str) -> None:
        """Copy a bundle into the store, or what is missing of it, and check every byte that is there then.

        Args:
            bundle: loaded and checked.
            decision: text for `decision.json` beside its files; the manifest does not list it, so it may be replaced.

        Raises:
            UsageError: what is there under this version is another bundle.
            StoreBusy: no answer from the store.
        """
        place = f"bundles/{bundle.version}"
        if not self._there(f"{place}/{MANIFEST}"):
            for name in bundle.manifest.files:
                self._copy(bundle.path / name, f"{place}/{name}")
            self._write(f"{place}/{DECISION}", decision)
            self._copy(bundle.path / MANIFEST, f"{place}/{MANIFEST}")
        else:
            self._write(f"{place}/{DECISION}", decision)
        self.check(bundle.version)

    def check(self, version: str) -> None:
        """Read the bundle back.

        Raises:
            UsageError: it is not there, or a file of it is not what the manifest says.
            StoreBusy: no answer from the store.
        """
        place = f"{self._path}/{BUNDLES}/{version}"
        mend = f"delete {self.folder_of(version)} and promote the bundle again"
        try:
            with self._reached():
                manifest = self._files.cat_file(f"{place}/{MANIFEST}")
                if hashlib.sha256(manifest).hexdigest()[:12] != version:
                    raise UsageError(f"{self.folder_of(version)}/{MANIFEST} is another bundle's: {mend}")
                for name, entry in json.loads(manifest)["files"].items():
                    with self._files.open(f"{place}/{name}", "rb") as stream:
                        found = hashlib.file_digest(stream, "sha256").hexdigest()
                    if found != entry["sha256"]:
                        raise UsageError(f"{self.folder_of(version)}/{name} is damaged: {mend}")
        except FileNotFoundError as error:
            raise UsageError(f"{self.folder_of(version)} is not whole ({error}): {mend}") from error

    def point(self, name: str, version: str, before: Alias | None) -> Alias:
        """Let an alias name a version, in one step, if it still is what it was when it was read.

        Raises:
            StoreBusy: somebody else has changed it; or no answer from the store.
        """
        history = (before.bundle, *before.history)[:KEPT] if before else ()
        return self._replace(name, before, Alias(version, history, _now()))

    def roll_back(self, name: str) -> Alias:
        """Let an alias name the version that it named before.

        Raises:
            UsageError: there is no such alias or no version before, or it is not whole.
            StoreBusy: somebody else has changed the alias; or no answer from the store.
        """
        before = self.alias(name)
        if before is None or not before.history:
            raise UsageError(f"{self.root}: {name} {'is no alias' if before is None else 'had no version before'}")
        self.check(before.history[0])
        return self._replace(name, before, Alias(before.history[0], before.history[1:], _now()))

    @contextmanager
    def opened(self, version: str) -> Iterator[Bundle]:
        """The bundle of that version; from S3 it is fetched into a folder that goes afterwards.

        Raises:
            BundleRefused: it is not whole.
            StoreBusy: no answer from the store.
        """
        if not self._remote:
            yield Bundle.load(Path(self._path, "bundles", version))
            return
        with TemporaryDirectory() as folder:
            with self._reached():
                self._files.get(f"{self._path}/{BUNDLES}/{version}/", f"{folder}/", recursive=True)
            yield Bundle.load(Path(folder))

    def _replace(self, name: str, before: Alias | None, after: Alias) -> Alias:
        moved = StoreBusy(f"{self.root}: {name} was changed meanwhile: the same command again sees what it names now")
        if not self._remote:
            folder = Path(self._path, "aliases")
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f".{name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self.alias(name) != before:
                    raise moved
                write_text(folder / f"{name}.json", after.text())
            return after
        condition = {"IfMatch": before.etag} if before else {"IfNoneMatch": "*"}
        try:
            with self._reached():
                self._files.pipe_file(f"{self._path}/{ALIASES}/{name}.json", after.text().encode(), **condition)
        except StoreBusy as error:
            now = self.alias(name)
            if now is None or now.text() != after.text():  # a try that was answered too late, and repeated, has won
                raise (moved if _lost_race(error.__cause__) else error) from error.__cause__
        return after

    def _there(self, place: str) -> bool:
        with self._reached():
            return bool(self._files.exists(f"{self._path}/{place}"))

    def _listed(self, place: str) -> list[str]:
        try:
            with self._reached():
                found = self._files.ls(f"{self._path}/{place}", detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def _copy(self, source: Path, place: str) -> None:
        """On S3 an object appears when it is whole, and nobody can see it before."""
        if self._remote:
            with self._reached():
                self._files.put_file(str(source), f"{self._path}/{place}")
            return
        target = Path(self._path, place)
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(source, target)

    def _write(self, place: str, text: str) -> None:
        if self._remote:
            with self._reached():
                self._files.pipe_file(f"{self._path}/{place}", text.encode())
            return
        write_text(Path(self._path, place), text)

    def _reached(self) -> AbstractContextManager[None]:
        """What a remote store's client raises, as errors of ours; a missing file stays `FileNotFoundError`."""
        return reached(self.root) if self._remote else nullcontext()


def _lost_race(error: BaseException | None) -> bool:
    """Whether S3 refused a write because the object is not what it was; s3fs wraps what botocore says."""
    if isinstance(error, FileExistsError):
        return True
    response = getattr(error.__cause__, "response", {}) if error else {}
    return response.get("Error", {}).get("Code") in _LOST_RACE


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _parsed(content: bytes, where: str, etag: str) -> Alias:
    try:
        found = json.loads(content)
        versions = [found["bundle"], *found["history"]]
        if found["format"] == FORMAT and all(BUNDLE_VERSION.fullmatch(version) for version in versions):
            return Alias(versions[0], tuple(versions[1:]), str(found["changed_at"]), etag)
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{where}: no alias of a bundle store (format {FORMAT}); delete it and promote again")
