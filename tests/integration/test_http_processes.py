"""`lengnuan-serve --http-processes` as real processes: answers, one that is killed, the end."""

import hashlib
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from served_process import PATIENCE_S, Served, command, serve

pytestmark = pytest.mark.integration

TWO = ("--http-processes", "2", "--drain-delay-s", "0")


def children(served: Served) -> list[int]:
    """The processes that answer HTTP."""
    tasks = Path(f"/proc/{served.process.pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text(encoding="utf-8").split()]


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def until_gone(processes: list[int]) -> None:
    end = time.monotonic() + PATIENCE_S
    while any(map(alive, processes)):
        assert time.monotonic() < end, "still running"
        time.sleep(0.01)


def test_many_connections_get_the_answers_of_one_process(tiny_bundle: Path) -> None:
    def ask(served: Served, text: str) -> object:
        with httpx.Client(timeout=PATIENCE_S) as client:  # a connection of its own
            return served.classify(client, text).json()["data"]

    texts = ["好", "差", "很好看", "好看电影"] * 8
    with serve(tiny_bundle, "--drain-delay-s", "0") as one:
        expected = [ask(one, text) for text in texts[:4]] * 8
        one.process.send_signal(signal.SIGTERM)
    with serve(tiny_bundle, *TWO) as served:
        started = children(served)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda text: ask(served, text), texts))
        scrape = httpx.get(f"{served.url}/metrics", timeout=PATIENCE_S).text
        served.process.send_signal(signal.SIGTERM)
    assert len(started) == 2
    assert found == expected
    assert 'lengnuan_items_total{model="default",outcome="ok"} 32.0' in scrape
    assert served.process.returncode == 0
    until_gone(started)


def test_a_process_that_is_killed_is_replaced_and_the_others_answer_meanwhile(tiny_bundle: Path) -> None:
    with serve(tiny_bundle, *TWO) as served:
        first, second = children(served)
        os.kill(first, signal.SIGKILL)
        until_gone([first])
        with httpx.Client(timeout=PATIENCE_S) as client:
            assert served.classify(client).status_code == 200
            served.wait_for(client, "ok", "/readyz")
        end = time.monotonic() + PATIENCE_S
        while len(children(served)) < 2:
            assert time.monotonic() < end
        assert second in children(served)
        served.process.send_signal(signal.SIGTERM)
    assert served.process.returncode == 0
    assert "a process that answers HTTP has ended; another takes its place" in [line["message"] for line in served.log]


def test_a_signal_to_all_of_them_is_one_signal(tiny_bundle: Path) -> None:
    """As a terminal's Ctrl-C and a service manager send it."""
    with serve(tiny_bundle, *TWO[:2], "--drain-delay-s", "600") as served, httpx.Client(timeout=PATIENCE_S) as client:
        started = children(served)
        for process in (*started, served.process.pid):
            os.kill(process, signal.SIGINT)
        while client.get(f"{served.url}/readyz").status_code == 200:
            pass
        during = [served.classify(client) for _ in range(5)]
        served.process.send_signal(signal.SIGINT)  # asked twice: no more waiting
    assert {(reply.status_code, reply.headers["Connection"]) for reply in during} == {(200, "close")}
    assert served.process.returncode == 0
    until_gone(started)


def test_a_process_that_is_stuck_is_replaced(tiny_bundle: Path) -> None:
    patience = ("--stalled-after-s", "1", "--dead-after-s", "1")
    with serve(tiny_bundle, *TWO, *patience) as served:
        stuck, _ = children(served)
        os.kill(stuck, signal.SIGSTOP)
        until_gone([stuck])
        end = time.monotonic() + PATIENCE_S
        while len(children(served)) < 2:
            assert time.monotonic() < end
        served.process.send_signal(signal.SIGTERM)
    assert served.process.returncode == 0
    assert any("has not answered for 1 s" in line["message"] for line in served.log)


def test_one_that_can_not_be_replaced_at_once_does_not_end_the_others(tiny_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    good = f'[shop]\nsha256 = ["{hashlib.sha256(b"secret").hexdigest()}"]\n'
    keys.write_text(good, encoding="utf-8")
    header = {"Authorization": "Bearer secret"}
    with serve(tiny_bundle, *TWO, "--keys-file", str(keys)) as served, httpx.Client(headers=header) as client:
        keys.write_text("broken", encoding="utf-8")
        first, second = children(served)
        os.kill(first, signal.SIGKILL)
        until_gone([first])
        end = time.monotonic() + PATIENCE_S
        for _ in range(2):  # replacements that fail
            while [child for child in children(served) if child != second]:
                assert time.monotonic() < end
                time.sleep(0.01)
            while not [child for child in children(served) if child != second]:
                assert served.classify(client).status_code == 200
                assert time.monotonic() < end
        keys.write_text(good, encoding="utf-8")
        os.kill(second, signal.SIGKILL)  # now only a replacement can answer; a connection waits for it
        until_gone([second])
        assert httpx.post(
            f"{served.url}/v1/classify", json={"input": "好"}, headers=header, timeout=PATIENCE_S
        ).is_success
        served.process.send_signal(signal.SIGTERM)
    assert served.process.returncode == 0


@pytest.mark.parametrize("wrong", ["--bundle", "--models"])
def test_a_bundle_that_is_none_leaves_no_process(tiny_bundle: Path, tmp_path: Path, wrong: str) -> None:
    given = [str(tmp_path)] if wrong == "--bundle" else [f"other={tmp_path}", "--bundle", str(tiny_bundle)]
    argv = command(wrong, *given, "--port", "0", "--http-processes", "2", "--drain-delay-s", "600")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 3
    assert [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _read(path)] == []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # it has ended
        return ""


def test_without_the_process_that_has_the_models_the_others_end(tiny_bundle: Path) -> None:
    with serve(tiny_bundle, *TWO) as served:
        started = children(served)
        served.process.kill()
        until_gone(started)
    assert served.process.returncode == -signal.SIGKILL
