"""FastAPI and ONNX Runtime without batching: each request runs the network, in a thread of FastAPI's pool."""

from typing import Any

import uvicorn
from classifier import arguments, from_environment, texts_of
from fastapi import FastAPI
from pydantic import BaseModel


class Request(BaseModel):
    """A text, or several."""

    input: str | list[str]


def main() -> None:
    """Serve until SIGTERM."""
    port = arguments().port
    classify = from_environment()
    app = FastAPI()

    @app.get("/health")
    def health() -> str:
        return "ok"

    @app.post("/classify")
    def answer(request: Request) -> dict[str, Any]:
        return {"data": classify(texts_of(request.model_dump()))}

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
