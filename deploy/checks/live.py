"""A real service under load, a real Prometheus that scrapes it, a real Alertmanager: what they say is what is checked.

Where a metric comes from a cluster (kube-state-metrics, the kubelet, a GPU), a small page of made-up samples stands in
for it: that shows that an expression is valid and finds series of the documented shape, and nothing else.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from checks import expressions
from checks.load import under_load
from checks.processes import PATIENCE_S, free_port, get, running, wait

LABELS = {"namespace": "lengnuan", "pod": "lengnuan-a"}
INSTEAD_OF_A_CLUSTER = """\
kube_job_failed{namespace="lengnuan",job_name="lengnuan-retrain-1",condition="true"} 0
kube_job_complete{namespace="lengnuan",job_name="lengnuan-retrain-1",condition="true"} 1
kube_job_status_active{namespace="lengnuan",job_name="lengnuan-retrain-1"} 0
kube_cronjob_created{namespace="lengnuan",cronjob="lengnuan-retrain"} 1
kube_cronjob_status_last_successful_time{namespace="lengnuan",cronjob="lengnuan-retrain"} 1
container_cpu_usage_seconds_total{namespace="lengnuan",pod="lengnuan-retrain-1-x",container="retrain"} 1
container_memory_working_set_bytes{namespace="lengnuan",pod="lengnuan-retrain-1-x",container="retrain"} 1
DCGM_FI_DEV_FB_USED{namespace="gpu",exported_pod="lengnuan-a",gpu="0"} 1
DCGM_FI_DEV_FB_FREE{namespace="gpu",exported_pod="lengnuan-a",gpu="0"} 9
"""


@dataclass
class Stage:
    """What runs: addresses, and the alerts that a webhook has received."""

    service: str
    prometheus: str
    process: "subprocess.Popen[bytes]"
    alerts: set[str] = field(default_factory=set)

    def query(self, expression: str) -> list[float]:
        """The values of an instant query.

        Raises:
            ValueError: Prometheus refuses the expression.
        """
        url = f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                result = json.load(reply)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error).get("error", error)) from error
        return [float(sample["value"][1]) for sample in result]


def problems(folder: Path) -> list[str]:
    """Everything that a running service is needed for. Takes about three minutes."""
    shutil.rmtree(folder, ignore_errors=True)
    with staged(folder) as stage:
        found = [f"without load {text}" for text in scaling(stage, loaded=False)]
        with under_load(stage.service):
            _until(lambda: not scaling(stage, loaded=True), PATIENCE_S)
            found += scaling(stage, loaded=True)
            _until(lambda: not empty(stage, expressions.dashboard_expressions()), 60)
            found += empty(stage, expressions.dashboard_expressions())
        found += unexposed(stage)
        stage.process.terminate()
        stage.process.wait(60)
        _until(lambda: "LengnuanNoneReady" in stage.alerts, PATIENCE_S)
        if "LengnuanNoneReady" not in stage.alerts:
            found.append("the service was stopped, and no webhook heard of LengnuanNoneReady")
    return found


def empty(stage: Stage, dashboard: Mapping[str, str]) -> list[str]:
    """Panels that would show nothing."""
    found = []
    for place, expression in dashboard.items():
        filled = expression.replace("$__rate_interval", "1m").replace("$namespace", ".*")
        try:
            values = stage.query(filled)
        except ValueError as error:
            found.append(f"{place}: {error}")
        else:
            found += [] if any(map(math.isfinite, values)) else [f"{place}: no data"]
    return found


def scaling(stage: Stage, loaded: bool) -> list[str]:
    """KEDA and the HPA take one number a query; some have to pass their threshold under load, and none without."""
    queries = expressions.scaling_expressions()
    values = {name: stage.query(query) for name, (query, _) in queries.items()}
    values |= {name: stage.query(query) for name, query in expressions.adapter_expressions().items()}
    found = [f"{name}: {len(given)} values instead of one" for name, given in values.items() if len(given) != 1]
    over = [name for name, (_, limit) in queries.items() if values[name] and values[name][0] > limit]
    if not loaded:
        return found + [f"{name}: {values[name][0]:g} is over its threshold" for name in over]
    return found or ([] if over else ["under load no trigger of KEDA passes its threshold"])


def unexposed(stage: Stage) -> list[str]:
    """Names of the service's metrics that stand in an expression and not on its page."""
    page = get(f"{stage.service}/metrics")
    exposed = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if not line.startswith("#")}
    found = set()
    for place, expression in expressions.every_expression().items():
        for name, _ in expressions.series(expression):
            if name.startswith(("lengnuan_", "process_")) and name not in exposed:
                found.add(f"{place}: the running service exposes no {name}")
    return sorted(found)


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Service, Prometheus, Alertmanager, webhook and the stand-in page, all ready; stopped at the end."""
    folder.mkdir(parents=True)
    ports = [free_port() for _ in range(3)]
    service, prometheus, manager = (f"http://127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        environment = os.environ | {"LENGNUAN_PORT": str(ports[0]), "LENGNUAN_DRAIN_DELAY_S": "0"}
        command = [sys.executable, "-m", "lengnuan.service"]
        stage = Stage(service, prometheus, stack.enter_context(running(command, folder / "service.log", environment)))
        page = stack.enter_context(_serving(stage.alerts))
        _write_configuration(folder, ports, page)
        addresses = (f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{ports[1]}")
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", *addresses]
        stack.enter_context(running(command, folder / "prometheus.log"))
        command = ["prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml", "--cluster.listen-address="]
        command += [f"--web.listen-address=127.0.0.1:{ports[2]}", f"--storage.path={folder}/alerts"]
        stack.enter_context(running(command, folder / "alertmanager.log"))
        for url in (f"{service}/readyz", f"{prometheus}/-/ready", f"{manager}/-/ready"):
            wait(partial(get, url), f"{url} did not answer; the logs are in {folder}")
        wait(lambda: len(stage.query("rate(lengnuan_stage_duration_seconds_sum[1m])")) or _fail(), "nothing scraped")
        yield stage


def _write_configuration(folder: Path, ports: list[int], page: int) -> None:
    """A copy of the alerts that does not wait before it fires: the waiting is promtool's to test."""
    for file in expressions.unpack_rules(folder / "rules"):
        spec = yaml.safe_load(file.read_text(encoding="utf-8"))
        for group in spec["groups"]:
            for rule in group["rules"]:
                rule.pop("for", None)
        file.write_text(yaml.safe_dump(spec), encoding="utf-8")
    scraped = [("lengnuan", ports[0], LABELS), ("cluster", page, {})]
    prometheus = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(folder / "rules" / name) for name in ("objectives.yaml", "alerts.yaml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{ports[2]}"]}]}]},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}]}
            for job, port, labels in scraped
        ],
    }
    route = {"receiver": "webhook", "group_wait": "1s", "group_interval": "1s"}
    receiver = {"name": "webhook", "webhook_configs": [{"url": f"http://127.0.0.1:{page}/"}]}
    for name, content in (("prometheus", prometheus), ("alertmanager", {"route": route, "receivers": [receiver]})):
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content), encoding="utf-8")


@contextmanager
def _serving(alerts: set[str]) -> Iterator[int]:
    """The stand-in's samples on GET, Alertmanager's webhook on POST; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(INSTEAD_OF_A_CLUSTER.encode())

        def do_POST(self) -> None:
            message: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            firing = [alert for alert in message["alerts"] if alert["status"] == "firing"]
            alerts.update(alert["labels"]["alertname"] for alert in firing)
            self._answer(b"")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def _fail() -> bool:
    raise ValueError("not yet")


def _until(done: Callable[[], bool], seconds: float) -> None:
    """Wait for what has to come true, and give up without a word: whoever waits looks again."""
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(2)
