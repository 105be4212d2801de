"""Requests of every kind, until told to stop: short and long texts, texts that come again, what is refused."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CLIENTS = 24
TEXTS = ("房间很干净，早餐也丰富", "等了两个小时饭菜全凉了", "一般般吧，说不上好也说不上坏", "😀🎉 emoji 和 English")
LONG = "这家店的服务真的很好，下次还会再来，" * 40
SIZE = 8


@contextmanager
def under_load(url: str) -> Iterator[None]:
    """Keep `CLIENTS` connections busy while the block runs."""
    stop = threading.Event()
    address = url.removeprefix("http://")
    threads = [threading.Thread(target=_client, args=(address, number, stop)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _client(address: str, number: int, stop: threading.Event) -> None:
    connection = http.client.HTTPConnection(address, timeout=60)
    turn = 0
    while not stop.is_set():
        turn += 1
        new = [f"{TEXTS[(number + i) % len(TEXTS)]}{number}.{turn}.{i}" for i in range(SIZE)]
        texts = [*new, TEXTS[0], LONG] if turn % 5 == 0 else new
        body = json.dumps({"input": [""] if turn % 50 == 0 else texts}, ensure_ascii=False).encode()
        try:
            connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        except OSError:
            connection.close()
