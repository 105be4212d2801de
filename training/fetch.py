"""`lengnuan-train data fetch`: downloads a public set, and only when asked to.

Bytes go to `NAME.part`, which a later call continues; the file gets its name once size and checksum are right. A
file whose checksum nobody knows is trusted the first time: its checksum goes into `checksums.json` in the data
folder, and from then on a download, or the file on disk, must match it.
"""

import hashlib
import http.client
import json
import logging
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from lengnuan.training.errors import DataRefused, TrainingError, UsageError
from lengnuan.training.public_sets import CATALOGUE, PublicSet, RemoteFile, describe

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0  # for connecting and for each read, so a silent server can't hold the command
ATTEMPTS = 4
FIRST_PAUSE_S = 1.0  # before the second attempt; doubled before each later one
CHUNK_BYTES = 1 << 16
BYTES_BETWEEN_LINES = 8 << 20  # where there is no terminal for a bar


def fetch(name: str, output: Path, catalogue: Mapping[str, PublicSet] = CATALOGUE) -> Path:
    """Bring the set `name` into `output/name`; what is there and right is left alone.

    Waits for the network: `TIMEOUT_S` a read, `ATTEMPTS` attempts a file.

    Returns:
        The folder.

    Raises:
        UsageError: no such set, or a file in the way that this command did not write.
        DataRefused: a file is not what was promised; the message holds both values.
        TrainingError: the network failed; what arrived is kept and a second call goes on from there.
    """
    if name not in catalogue:
        raise UsageError(f"no public set {name!r}; known: {', '.join(sorted(catalogue))}")
    chosen = catalogue[name]
    log.info("%s", describe(chosen).rstrip())
    folder = output / name
    if chosen.write:
        chosen.write(folder)
    for file in chosen.files:
        _fetch_file(file, folder, output / "checksums.json")
        if file.name.endswith(".zip"):
            _unpack(folder / file.name)
    return folder


def catalogue_table(catalogue: Mapping[str, PublicSet] = CATALOGUE) -> str:
    """The known sets as text for a person, one paragraph a set."""
    return "\n".join(describe(public_set) for public_set in catalogue.values())


def _recorded(record: Path) -> dict[str, str]:
    """sha256 by address of what earlier downloads turned out to be.

    Raises:
        UsageError: the file is damaged.
    """
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        return {str(address): str(sha256) for address, sha256 in content.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        raise UsageError(f"{record} is damaged ({error}): repair it, or remove it to trust anew") from error


def _add_to_record(record: Path, address: str, sha256: str) -> None:
    content = _recorded(record) | {address: sha256}
    aside = record.with_suffix(".writing")
    aside.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    aside.replace(record)


def _fetch_file(file: RemoteFile, folder: Path, record: Path) -> None:
    target = folder / file.name
    expected = file.sha256 or _recorded(record).get(file.address)
    if target.exists():
        if expected is None:
            raise UsageError(f"{target} is in the way and was not fetched by this command: move it away")
        _check(target, file, expected)
        log.info("%s is there already", target)
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    _download(file, part)
    try:
        actual = _check(part, file, expected)
    except DataRefused:
        part.unlink()  # nothing in it is worth continuing
        raise
    if expected is None:
        _add_to_record(record, file.address, actual)
        log.info("%s: first download, trusted; sha256 %s is recorded in %s", target, actual, record)
    part.rename(target)
    log.info("%s: %s bytes", target, f"{target.stat().st_size:,}")


def _check(path: Path, file: RemoteFile, expected: str | None) -> str:
    """The sha256 of `path`, which must be `expected` (None: anything) and of the right size."""
    advice = "move it away and fetch again; if that changes nothing, the source is not what it was"
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        raise DataRefused(f"{path}: {size} bytes, but {file.address} should have {file.size}: {advice}")
    with path.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if expected is not None and actual != expected:
        raise DataRefused(f"{path}: sha256 is {actual}, but {file.address} should have {expected}: {advice}")
    return actual


def _download(file: RemoteFile, part: Path) -> None:
    """All bytes of `file` into `part`, going on after a broken connection."""
    pause = FIRST_PAUSE_S
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _receive(file, part)
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)  # longer than the file, so it belongs to something else
            elif error.code < 500 and error.code != http.HTTPStatus.TOO_MANY_REQUESTS:
                raise TrainingError(f"{file.address}: the server answers {error.code} {error.reason}") from error
            problem = f"{error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:  # no route, refused, timed out, cut off
            problem = str(error) or type(error).__name__
        log.warning("%s: attempt %d of %d failed: %s", file.address, attempt, ATTEMPTS, problem)
        if attempt < ATTEMPTS:
            time.sleep(pause)
            pause *= 2
    raise TrainingError(
        f"{file.address}: gave up after {ATTEMPTS} attempts ({problem}). Run the command again to go on from "
        f"{part}, or download the file elsewhere and give its path to the config"
    )


def _receive(file: RemoteFile, part: Path) -> None:
    """One attempt: append what `part` lacks, or start over where the server sends everything."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    request = urllib.request.Request(file.address, headers=headers)  # noqa: S310 - addresses are the catalogue's
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else file.size
        if file.size is not None and total != file.size:
            part.unlink(missing_ok=True)
            raise DataRefused(f"{file.address}: the server offers {total} bytes, but it should have {file.size}")
        with part.open("ab" if have else "wb") as out:
            received = have + _copy(response, out, file.name, have, total)
    if total is not None and received < total:
        raise ConnectionError(f"cut off after {received} of {total} bytes")


def _copy(response: http.client.HTTPResponse, out: BinaryIO, name: str, have: int, total: int | None) -> int:
    """Copy to the end of the answer, with a bar on a terminal and a line now and then elsewhere; returns the bytes."""
    copied = 0
    on_terminal = sys.stderr.isatty()
    with tqdm(total=total, initial=have, desc=name, unit="B", unit_scale=True, disable=not on_terminal) as bar:
        while chunk := response.read(CHUNK_BYTES):
            out.write(chunk)
            bar.update(len(chunk))
            if not on_terminal and copied // BYTES_BETWEEN_LINES != (copied + len(chunk)) // BYTES_BETWEEN_LINES:
                log.info("%s: %s of %s bytes", name, f"{have + copied + len(chunk):,}", f"{total:,}" if total else "?")
            copied += len(chunk)
    return copied


def _unpack(archive: Path) -> None:
    """The files of `archive` beside it, without their folders; what is there already stays.

    Raises:
        DataRefused: not a zip archive, or damaged.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            for member in content.infolist():
                name = Path(member.filename).name  # a folder in the name could lead out of ours
                target = archive.with_name(name)
                if member.is_dir() or name.startswith(".") or "__MACOSX" in member.filename or target.exists():
                    continue
                aside = target.with_name(target.name + ".writing")
                aside.write_bytes(content.read(member))
                aside.rename(target)
                log.info("%s: unpacked", target)
    except (zipfile.BadZipFile, RuntimeError) as error:
        raise DataRefused(f"{archive}: {error}") from error
