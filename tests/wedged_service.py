"""`lengnuan-serve` with an engine that never comes back from a batch in which `STRANGE` is."""

import sys
import threading

import numpy as np
from service_fixtures import STRANGE_ID, FakeEngine

from lengnuan.service.__main__ import serve
from lengnuan.service.logs import configure_logging
from lengnuan.service.settings import Settings


class WedgedEngine(FakeEngine):
    def run(self, token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if (token_ids == STRANGE_ID).any():
            threading.Event().wait()
        return super().run(token_ids, mask)


if __name__ == "__main__":
    configure_logging("info", sys.stderr)
    serve(Settings.from_command_line(sys.argv[1:]), WedgedEngine())
