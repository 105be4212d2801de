"""The soak itself: a service in a process of its own, clients, a watcher, and the account at the end."""

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from service_fixtures import write_fake_bundle

from lengnuan.model.bundle import Bundle
from soak import service
from soak.client import Connection, ProtocolBroken
from soak.mix import MAX_CHARS, MAX_TEXTS, Exchange, exchanges
from soak.watch import Growth, Watch, growth, logged

PATIENCE_S = 120
HANG_UP_SHARE = 0.04
LONGEST_STAY_S = 0.02
KEPT_FAULTS = 20
RELOAD_EVERY_S = 0.4
SETTINGS = {
    # Small enough that the queue is full now and then, and that what is kept on purpose is kept from early on.
    **{
        "max-texts": MAX_TEXTS,
        "max-chars": MAX_CHARS,
        "queue-items": 2 * MAX_TEXTS,
        "queue-tokens": 4000,
        "cache-size": 1000,
    },
    **{"request-timeout-s": 60, "stalled-after-s": 60, "drain-delay-s": 0},
}


@dataclass
class Account:
    """What came of the requests. `outcomes` counts kind and status, or `left` for the clients that hung up."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Requests that have come to their end."""
        return len(self.answered) + len(self.left)


@dataclass(frozen=True)
class Result:
    """A whole run. `seen_leaving`: hang-ups that the service got far enough to log; `reloads`: by what came of them."""

    account: Account
    scrapes: int
    growth: Growth
    seconds: float
    seen_leaving: int
    reloads: Counter[str]
    faults: list[str]


def soak(folder: Path, requests: int, clients: int, seed: int) -> Result:
    """Put `requests` requests of `clients` connections to a faulty service, whose log is left in `folder`."""
    account, watch = Account(), Watch()
    chance = random.Random(seed)
    log = folder / "service.log"
    bundles = Bundles(folder)
    with serving(bundles.link, log) as (process, host, port):
        begin = time.monotonic()
        work = itertools.islice(exchanges(chance), requests)
        reloading = _reload_now_and_then(bundles, process)
        asyncio.run(_put(work, Connections(host, port, clients, chance), account, watch, reloading))
        seconds = time.monotonic() - begin
        reloads = _reloads(httpx.get(f"http://{host}:{port}/metrics", timeout=PATIENCE_S).text)
        ready = httpx.get(f"http://{host}:{port}/readyz", timeout=PATIENCE_S).status_code
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_S)
    times = logged(log)
    faults = account.faults + watch.faults + _in_the_log(times, account)
    faults += [] if account.done == requests else [f"{account.done} requests came to an end, of {requests}"]
    faults += [] if ready == 200 else [f"/readyz is {ready} after the load"]
    faults += [] if code == 0 else [f"the service ended with {code}"]
    grown = growth(watch.memory)
    if grown.growth > grown.bound:
        faults.append(f"memory grew by {grown.growth:.1f} MB over the second half, {grown.bound:.1f} at most")
    missing = [result for result in ("reloaded", "refused") if not reloads[result]]
    faults += [f"no bundle was {result}" for result in missing if seconds > 10 * RELOAD_EVERY_S]
    seen = sum(request_id in times for request_id in account.left)
    return Result(account, watch.scrapes, grown, seconds, seen, reloads, faults)


class Bundles:
    """A link that leads to one of three bundles: two that answer alike, and one whose golden answers are wrong."""

    def __init__(self, folder: Path) -> None:
        self.link = folder / "bundle"
        good = [write_fake_bundle(folder / name, service.logits_of) for name in ("first", "second")]
        bad = write_fake_bundle(folder / "bad", lambda ids: [2 * logit + 1 for logit in service.logits_of(ids)])
        self._places = itertools.cycle([*good, bad])
        Bundle.write(good[1], Bundle.load(good[1]).manifest.model_copy(update={"created": "2026-01-02T00:00:00Z"}))
        self.turn()

    def turn(self) -> None:
        """Let it lead to the next, in one step."""
        aside = self.link.with_suffix(".aside")
        aside.symlink_to(next(self._places))
        aside.replace(self.link)


async def _reload_now_and_then(bundles: Bundles, process: "subprocess.Popen[bytes]") -> None:
    while True:
        await asyncio.sleep(RELOAD_EVERY_S)
        bundles.turn()
        process.send_signal(signal.SIGHUP)


@contextmanager
def serving(bundle: Path, log: Path) -> Iterator[tuple["subprocess.Popen[bytes]", str, int]]:
    """The process with the faulty engine, once it is ready; its host and port."""
    options = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in SETTINGS.items())
    command = [sys.executable, service.__file__, "--bundle", str(bundle), "--port", "0", *options]
    fixtures = Path(__file__).parents[1]  # what the service's file imports
    paths = [str(fixtures), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stderr=output, env=environment)
    try:
        url = httpx.URL(_ready(process, log))
        yield process, url.host, url.port or 0
    finally:
        process.kill()
        process.wait()


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The address, once the log says that the service is ready."""
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < end:
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        if urls := [entry["url"] for entry in entries if entry["message"] == "ready"]:
            return str(urls[0])
        time.sleep(0.05)
    raise RuntimeError(f"the service did not start; it said: {log.read_text(encoding='utf-8')[-2000:]}")


@dataclass(frozen=True)
class Connections:
    """Where to, how many at once, and the chance by which clients leave."""

    host: str
    port: int
    clients: int
    chance: random.Random

    def open(self) -> Connection:
        """A new connection, not open yet."""
        return Connection(self.host, self.port)


async def _put(
    work: Iterator[Exchange],
    connections: Connections,
    account: Account,
    watch: Watch,
    reloading: Coroutine[None, None, None],
) -> None:
    numbered = enumerate(work)
    with ExitStack() as stack:
        watched, *opened = (stack.enter_context(connections.open()) for _ in range(1 + connections.clients))
        following = watch.follow(watched, lambda: account.done)
        beside = [asyncio.create_task(endless) for endless in (following, reloading)]
        await asyncio.gather(*(_client(connection, numbered, connections.chance, account) for connection in opened))
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
        account.faults += [f"the watcher ended: {task.exception()!r}" for task in beside if not task.cancelled()]
        quiet = await asyncio.gather(*(connection.silent() for connection in opened))
        account.faults += ["a connection on which nothing was asked says something"] * quiet.count(False)
        last = stack.enter_context(connections.open())
        try:
            await watch.until_idle(last)
        except TimeoutError:
            account.faults.append("a minute after the load something was still under way")


async def _client(
    connection: Connection, work: Iterator[tuple[int, Exchange]], chance: random.Random, account: Account
) -> None:
    for number, exchange in work:
        request_id = f"soak-{number}"
        try:
            if chance.random() < HANG_UP_SHARE:
                account.left.add(request_id)
                account.outcomes[exchange.kind, "left"] += 1
                await connection.send(exchange.message, request_id, chance.choice([1.0, 1.0, chance.random()]))
                await asyncio.sleep(chance.random() * LONGEST_STAY_S)
                connection.hang_up()
                continue
            reply = await connection.ask(exchange.message, request_id)
        except (ProtocolBroken, OSError) as error:
            connection.hang_up()
            _note(account, f"{exchange.kind}: {error!r}")
            continue
        account.answered.add(request_id)
        account.outcomes[exchange.kind, str(reply.status)] += 1
        if fault := exchange.fault(reply):
            _note(account, f"{exchange.kind}: {fault}")


def _reloads(page: str) -> Counter[str]:
    """From the metrics, how many bundles were reloaded, unchanged or refused."""
    families = text_string_to_metric_families(page)
    samples = [sample for family in families for sample in family.samples if sample.name == "lengnuan_reload_total"]
    return Counter({sample.labels["result"]: int(sample.value) for sample in samples})


def _note(account: Account, fault: str) -> None:
    if len(account.faults) < KEPT_FAULTS:
        account.faults.append(fault)


def _in_the_log(times: Counter[str], account: Account) -> list[str]:
    """Requests that the service did not log as answered once; one whose client left it may never have read."""
    missing = sum(times[request_id] != 1 for request_id in account.answered)
    twice = sum(times[request_id] > 1 for request_id in account.left)
    return [f"{count} requests are not in the log exactly once" for count in (missing + twice,) if count]
