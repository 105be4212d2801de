"""A rolling update of two replicas behind nginx, under load: no request may fail.

Processes stand in for pods and nginx for the Service; what a cluster does to a pod is done in its order: the new one is
ready before it is sent requests; the old one is told to go while requests still come, and forgotten some time later.
nginx may not try a second replica, so that each one's failures are seen.
"""

import http.client
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from checks.processes import PATIENCE_S, free_port, get, running, wait
from checks.tools import DEPLOY, ROOT, ToolMissing, program_path

log = logging.getLogger(__name__)

REQUESTS = 20_000
CLIENTS = 16
TEXT = "房间很干净，早餐也丰富"
CONFIGURATION = """\
daemon off;
pid {folder}/nginx.pid;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream lengnuan {{
        {servers}
        keepalive 32;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://lengnuan;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_next_upstream off;
            add_header X-Replica $upstream_addr always;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Plan:
    """How a replica goes.

    Args:
        prestop_s: between the order to go and SIGTERM.
        forgotten_after_s: between the order to go and the last request that is sent there; a cluster needs a second
            or two until every node knows.
        drain_delay_s: `LENGNUAN_DRAIN_DELAY_S`.
        grace_s: between the order to go and SIGKILL.
    """

    prestop_s: float
    forgotten_after_s: float
    drain_delay_s: float
    grace_s: float


@dataclass
class Traffic:
    """What came of the requests: how many were asked, how many each replica answered, and how the others failed."""

    asked: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


def problems(folder: Path) -> list[str]:
    """Failed requests of an update with the times of the manifests. Takes one or two minutes."""
    traffic = roll(folder, manifest_plan(), REQUESTS)
    log.info("%d requests, answered by %s", traffic.asked, dict(traffic.answered))
    found = [f"{count} of {traffic.asked} requests failed: {kind}" for kind, count in traffic.failed.items()]
    idle = 4 - len(traffic.answered)
    return found + ([f"{idle} of 4 replicas answered nothing"] if idle else [])


def manifest_plan() -> Plan:
    """The times of base/, and two seconds until the pod is forgotten."""
    pod = yaml.safe_load((DEPLOY / "base" / "deployment.yaml").read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    settings = (DEPLOY / "base" / "settings.env").read_text(encoding="utf-8").splitlines()
    [delay] = [line.partition("=")[2] for line in settings if line.startswith("LENGNUAN_DRAIN_DELAY_S=")]
    prestop = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    return Plan(float(prestop), 2.0, float(delay), float(pod["terminationGracePeriodSeconds"]))


def roll(folder: Path, plan: Plan, requests: int) -> Traffic:
    """Replace both replicas, one after the other, under load, and go on until there were `requests` requests.

    Raises:
        ToolMissing: there is no nginx.
        RuntimeError: a replica did not end by itself, with exit code 0, within the grace period.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ExitStack() as stack:

        def start(number: int) -> Replica:
            return stack.enter_context(_replica(folder / f"replica-{number}.log", plan.drain_delay_s))

        old = [start(0), start(1)]
        for replica in old:
            replica.wait_ready()
        proxy = stack.enter_context(_proxy(folder, old))
        with _load(proxy.port, requests) as traffic:
            for number, leaving in enumerate(old):
                staying = [replica for replica in proxy.upstream if replica is not leaving]
                new = start(2 + number)
                new.wait_ready()
                proxy.send_to([leaving, *staying, new])
                _retire(leaving, plan, proxy, [*staying, new])
                log.info("replica %d of 2 replaced, after %d requests", number + 1, traffic.asked)
        return traffic


def _retire(leaving: "Replica", plan: Plan, proxy: "Proxy", others: "list[Replica]") -> None:
    """Both begin at once and don't wait for each other, as in a cluster: preStop and SIGTERM, and the forgetting."""
    steps = [
        (plan.prestop_s, lambda: leaving.process.send_signal(signal.SIGTERM)),
        (plan.forgotten_after_s, lambda: proxy.send_to(others)),
    ]
    begin = time.monotonic()
    for after_s, step in sorted(steps, key=lambda entry: entry[0]):
        time.sleep(max(0.0, begin + after_s - time.monotonic()))
        step()
    try:
        code = leaving.process.wait(begin + plan.grace_s - time.monotonic())
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"a replica was still there after {plan.grace_s:g} s") from None
    if code:
        raise RuntimeError(f"a replica ended with {code}")


@dataclass(frozen=True)
class Replica:
    """A service in a process of its own."""

    port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    def wait_ready(self) -> None:
        """Raises `ToolMissing` if it never is."""
        wait(lambda: get(f"http://127.0.0.1:{self.port}/readyz"), f"a replica is not ready: {self.log} says why")


@contextmanager
def _replica(log: Path, drain_delay_s: float) -> Iterator[Replica]:
    port = free_port()
    environment = os.environ | {
        "LENGNUAN_BUNDLE": str(ROOT / "model" / "bundles" / "tiny"),
        "LENGNUAN_PORT": str(port),
        "LENGNUAN_THREADS": "1",
        "LENGNUAN_LOG_LEVEL": "warning",
        "LENGNUAN_DRAIN_DELAY_S": str(drain_delay_s),
    }
    with running([sys.executable, "-m", "lengnuan.service"], log, environment) as process:
        yield Replica(port, process, log)


@dataclass
class Proxy:
    """nginx, and where it sends requests."""

    folder: Path
    port: int
    upstream: list[Replica]
    process: "subprocess.Popen[bytes] | None" = None

    def send_to(self, upstream: list[Replica]) -> None:
        """Send new requests to these; those under way are left where they are."""
        self.upstream = upstream
        servers = "\n        ".join(f"server 127.0.0.1:{replica.port} max_fails=0;" for replica in upstream)
        content = CONFIGURATION.format(folder=self.folder, port=self.port, servers=servers)
        (self.folder / "nginx.conf").write_text(content, encoding="utf-8")
        if self.process is not None:
            self.process.send_signal(signal.SIGHUP)


@contextmanager
def _proxy(folder: Path, upstream: list[Replica]) -> Iterator[Proxy]:
    nginx = program_path("nginx")
    if nginx is None:
        raise ToolMissing("nginx is not installed: run `make deploy-check`, which says how")
    proxy = Proxy(folder, free_port(), upstream)
    proxy.send_to(upstream)
    errors = folder / "nginx.log"
    command = [nginx, "-p", str(folder), "-e", str(errors), "-c", str(folder / "nginx.conf")]
    with running(command, errors) as proxy.process:
        wait(lambda: get(f"http://127.0.0.1:{proxy.port}/livez"), f"nginx does not answer: {errors} says why")
        yield proxy


@contextmanager
def _load(port: int, requests: int) -> Iterator[Traffic]:
    """Requests while the block runs and until there were so many; nobody waits for an answer for ever."""
    traffic, lock, rolled = Traffic(), threading.Lock(), threading.Event()

    def ask_on() -> None:
        while not (rolled.is_set() and traffic.asked >= requests):
            with lock:
                traffic.asked += 1
                number = traffic.asked
            replica, fault = _ask(port, f"{TEXT}{number}")
            with lock:
                if fault:
                    traffic.failed[fault] += 1
                else:
                    traffic.answered[replica] += 1

    threads = [threading.Thread(target=ask_on) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield traffic
    finally:
        rolled.set()
        for thread in threads:
            thread.join()


def _ask(port: int, text: str) -> tuple[str, str]:
    """The replica that answered, or what went wrong.

    A connection a request: a worker of nginx that is told of another configuration closes those that are idle, and a
    request that meets the closing would count against the service.
    """
    body = json.dumps({"input": text}, ensure_ascii=False).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json", "Connection": "close"})
        reply = connection.getresponse()
        content = json.loads(reply.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return "", type(error).__name__
    finally:
        connection.close()
    right = reply.status == 200 and len(content["data"]) == 1
    return (reply.headers["X-Replica"], "") if right else ("", f"status {reply.status}")
