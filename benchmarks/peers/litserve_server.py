"""LitServe with one worker process, batches of up to `ROWS` requests."""

from typing import Any

from classifier import ROWS, TIMEOUT_S, WAIT_MS, arguments, from_environment, texts_of
from litserve import LitAPI, LitServer


class Classify(LitAPI):
    """Runs a batch of requests."""

    def setup(self, device: str) -> None:
        """Called once in the worker process."""
        self._classify = from_environment()

    def decode_request(self, request: dict[str, Any]) -> list[str]:
        """The texts of a request."""
        return texts_of(request)

    def batch(self, inputs: list[list[str]]) -> list[list[str]]:
        """Requests stay apart: they may differ in their number of texts."""
        return inputs

    def predict(self, batch: list[list[str]]) -> list[dict[str, Any]]:
        """Requests to replies, in their order."""
        return self._classify.many(batch)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """As `predict` left them."""
        return output

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        """As `predict` left it."""
        return output


def main() -> None:
    """Serve until SIGTERM."""
    port = arguments().port
    api = Classify(max_batch_size=ROWS, batch_timeout=WAIT_MS / 1000, api_path="/classify")
    server = LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, timeout=TIMEOUT_S, fast_queue=True)
    server.run(host="127.0.0.1", port=port, log_level="warning", access_log=False, generate_client_file=False)


if __name__ == "__main__":
    main()
