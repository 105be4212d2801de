"""`lengnuan-serve` as a real process whose models are changed while it runs."""

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from bundle_stores import point, put
from tiny_bundle import write_tiny_bundle

from lengnuan.model.bundle import GOLDEN, MODEL, Bundle

pytestmark = pytest.mark.integration

PATIENCE_S = 120
TOKEN = "0123456789abcdef"  # noqa: S105
CLOSED_TERMINAL = pytest.mark.skipif(not hasattr(termios, "TIOCSCTTY"), reason="needs a controlling terminal")


@dataclass(frozen=True)
class Process:
    running: "subprocess.Popen[str]"
    client: httpx.Client
    log: list[dict[str, Any]]

    def classify(self) -> httpx.Response:
        return self.client.post("/v1/classify", json={"input": "好"})

    def reload(self) -> httpx.Response:
        return self.client.post("/admin/reload", headers={"X-Admin-Token": TOKEN})

    def metric(self, sample: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample))

    def wait(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)


@contextmanager
def serve(folder: Path, bundle: Path | str, *argv: str, **popen: Any) -> Iterator[Process]:
    """A ready service with a client; it has to end by itself, or by the SIGTERM that comes at the end."""
    (folder / "token").write_text(TOKEN, encoding="utf-8")
    options = ("--bundle", str(bundle), "--port", "0", "--device", "cpu", "--engine", "onnxruntime", "--threads", "1")
    options += ("--admin-token-file", str(folder / "token"), "--drain-delay-s", "0", "--log-format", "json", *argv)
    command = [sys.executable, "-m", "lengnuan.service", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **popen)
    assert process.stderr is not None
    log: list[dict[str, Any]] = []
    try:
        lines = (json.loads(line) for line in process.stderr)
        ready = next(line for line in lines if line["message"] == "ready")
        reading = threading.Thread(target=lambda: log.extend(lines))  # a full pipe would stop the service
        reading.start()
        with httpx.Client(base_url=ready["url"], timeout=PATIENCE_S) as client:
            yield Process(process, client, log)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        reading.join(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def bundles(tmp_path: Path) -> list[Path]:
    """Two whole bundles, and one whose graph is cut off."""
    made = [write_tiny_bundle(tmp_path / name, threshold) for name, threshold in (("a", 0.0), ("b", 0.5), ("c", 0.6))]
    truncate(made[-1])
    return made


def truncate(bundle: Path) -> None:
    graph = bundle / MODEL
    graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])


def answer_wrongly(bundle: Path) -> None:
    """A whole bundle whose graph does not give its golden answers."""
    manifest = Bundle.load(bundle).manifest
    answers = json.loads((bundle / GOLDEN).read_text(encoding="utf-8"))
    answers[0]["logits"][0] += 1.0
    (bundle / GOLDEN).write_text(json.dumps(answers), encoding="utf-8")
    Bundle.write(bundle, manifest)


def switch(link: Path, bundle: Path) -> Path:
    """Let a link lead to another bundle, in one step."""
    aside = link.with_suffix(".aside")
    aside.symlink_to(bundle)
    os.replace(aside, link)
    return link


def test_sighup_loads_what_is_in_the_folder_now(tmp_path: Path, bundles: list[Path]) -> None:
    link, [first, second, _] = tmp_path / "current", bundles
    with serve(tmp_path, switch(link, first)) as process:
        assert process.classify().json()["model_version"] == Bundle.load(first).version
        switch(link, second)
        process.running.send_signal(signal.SIGHUP)
        process.wait(lambda: process.metric('lengnuan_reload_total{model="default",result="reloaded"}'))
        assert process.classify().json()["model_version"] == Bundle.load(second).version
    assert "model reloaded" in [line["message"] for line in process.log]


def test_a_truncated_graph_leaves_the_old_model_serving(tmp_path: Path, bundles: list[Path]) -> None:
    first = bundles[0]
    with serve(tmp_path, first) as process:
        before = process.classify().json()
        truncate(first)
        reply = process.reload()
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "reload_refused")
        assert MODEL in reply.json()["error"]["message"]
        after = process.classify().json()
        assert (after["data"], after["model_version"]) == (before["data"], before["model_version"])
        process.running.send_signal(signal.SIGHUP)
        process.wait(lambda: process.metric('lengnuan_reload_total{model="default",result="refused"}') == 2)
        assert process.classify().status_code == 200
        assert process.client.get("/readyz").status_code == 200
    refusals = [line for line in process.log if "reload refused" in line["message"]]
    assert [line["level"] for line in refusals] == ["error", "error"]


def test_requests_do_not_notice_reloads(tmp_path: Path, bundles: list[Path]) -> None:
    link, [first, second, broken] = tmp_path / "current", bundles
    ended = threading.Event()
    replies: list[tuple[int, str]] = []

    def ask(client: httpx.Client) -> None:
        while not ended.is_set():
            reply = client.post("/v1/classify", json={"input": ["好", "电影很好看!", "差"]})
            replies.append((reply.status_code, reply.json().get("model_version")))

    with serve(tmp_path, switch(link, first), "--cache-size", "0") as process:
        asking = [threading.Thread(target=ask, args=[process.client]) for _ in range(4)]
        for thread in asking:
            thread.start()
        statuses = []
        for bundle in (second, broken, first, broken, second, first, broken, second, broken, first):
            switch(link, bundle)
            statuses.append(process.reload().status_code)
            before = len(replies)
            process.wait(lambda before=before: len(replies) > before + 8)
        ended.set()
        for thread in asking:
            thread.join(PATIENCE_S)
        received = process.metric("lengnuan_items_received_total")
        assert process.metric("lengnuan_items_total") == received == 3 * len(replies)
    assert statuses == [200, 409, 200, 409, 200] * 2
    assert {status for status, _ in replies} == {200}
    assert {version for _, version in replies} == {Bundle.load(bundle).version for bundle in (first, second)}


def test_fifty_reloads_leave_no_memory_behind(tmp_path: Path, bundles: list[Path]) -> None:
    link, [first, second, cut_off] = tmp_path / "current", bundles
    wrong = write_tiny_bundle(tmp_path / "wrong", 0.7)
    answer_wrongly(wrong)
    with serve(tmp_path, switch(link, first)) as process:

        def reload_and_ask(rounds: int) -> float:
            for number in range(rounds):
                bad = (cut_off, wrong)[number % 2]
                for bundle in (second, first, second, bad, first):
                    switch(link, bundle)
                    assert process.reload().status_code == (409 if bundle is bad else 200)
                    assert process.classify().status_code == 200
            return process.metric("process_resident_memory_bytes")

        before = reload_and_ask(rounds=4)
        after = reload_and_ask(rounds=10)
    assert after < 1.05 * before


def test_an_alias_that_is_moved_moves_the_service(tmp_path: Path, bundles: list[Path]) -> None:
    store, [first, second, _] = tmp_path / "store", bundles
    versions = [put(store, bundle) for bundle in (first, second)]
    point(store, "champion", versions[0])
    point(store, "challenger", versions[1])
    more = ("--models", f"next={store}@challenger", "--shadow", "next=1", "--watch-s", "0.05")
    with serve(tmp_path, f"{store}@champion", *more) as process:
        assert process.classify().json()["model_version"] == versions[0]
        process.wait(lambda: process.metric('lengnuan_shadow_total{model="next",result="same"}'))
        point(store, "champion", versions[1])
        process.wait(lambda: process.classify().json()["model_version"] == versions[1])
        shutil.rmtree(store / "bundles" / versions[0])
        point(store, "champion", versions[0])
        process.wait(lambda: process.metric('lengnuan_reload_total{model="default",result="refused"}'))
        assert process.classify().json()["model_version"] == versions[1]


@CLOSED_TERMINAL
def test_a_closed_terminal_ends_the_service(tmp_path: Path, bundles: list[Path]) -> None:
    master, slave = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    with serve(tmp_path, bundles[0], stdin=slave, start_new_session=True, preexec_fn=take_terminal) as process:
        os.close(slave)
        process.running.send_signal(signal.SIGHUP)
        process.wait(lambda: process.metric('lengnuan_reload_total{model="default",result="unchanged"}'))
        os.close(master)
        assert process.running.wait(PATIENCE_S) == 0
