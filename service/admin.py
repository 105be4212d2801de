"""`/admin/reload`, where the service was given a token for it; without one the path does not exist."""

import hashlib
import hmac
import logging
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from lengnuan.service import errors
from lengnuan.service.admin_errors import AdminRefused, ReloadRefused, ReloadRunning
from lengnuan.service.errors import InvalidRequest
from lengnuan.service.metrics import ReloadResult
from lengnuan.service.routing import documented, json_reply, lifecycle_of
from lengnuan.service.settings import Settings, SettingsRefused, name_of

log = logging.getLogger(__name__)

HEADER = "X-Admin-Token"
SHORTEST_TOKEN = 16
LONGEST_REASON = 1000
RELOAD_ERRORS = (
    *(AdminRefused, ReloadRunning, ReloadRefused),
    *(errors.UnknownModel, InvalidRequest, errors.NotReady, errors.InternalError),
)


class ReloadedModel(BaseModel):
    """What came of the reload of one model."""

    model: str
    result: ReloadResult
    version: Annotated[str | None, Field(description="served from now on")]
    previous: Annotated[str | None, Field(description="served before, if that is another")]


class ReloadReply(BaseModel):
    """One entry a model."""

    object: Literal["list"]
    data: list[ReloadedModel]


def add_routes(app: FastAPI, settings: Settings) -> None:
    """Register the route, if there is a token.

    Raises:
        SettingsRefused: there is no token in the file, or a short one.
    """
    if settings.admin_token_file is None:
        return
    _read_token(settings.admin_token_file)
    model = {"name": "model", "in": "query", "schema": {"type": "string"}, "description": "only this one"}
    token = {"name": HEADER, "in": "header", "required": True, "schema": {"type": "string"}}
    app.add_api_route(
        "/admin/reload",
        reload,
        methods=["POST"],
        response_model=ReloadReply,
        responses=documented(*RELOAD_ERRORS),
        openapi_extra={"parameters": [model, token]},
        tags=["operation"],
    )


async def reload(request: Request) -> Response:
    """Load what now lies where the models came from, and serve it. A bundle that can't be served changes nothing."""
    settings: Settings = request.app.state.settings
    _check_token(request, settings)
    unknown = request.query_params.keys() - {"model"}
    if unknown:
        raise InvalidRequest("the query may have `model` only")
    done = await lifecycle_of(request).reload(request.query_params.get("model"))
    refused = [f"{entry.model}: {entry.error}" for entry in done if entry.result == "refused"]
    if refused:
        raise ReloadRefused("; ".join(refused)[:LONGEST_REASON])
    data = [ReloadedModel(model=e.model, result=e.result, version=e.version, previous=e.previous) for e in done]
    return json_reply(ReloadReply(object="list", data=data))


def _check_token(request: Request, settings: Settings) -> None:
    """Compare in a time that says nothing of the token; its file is read each time, so it can be changed."""
    try:
        expected = _read_token(settings.admin_token_file)
    except SettingsRefused as error:
        log.error("%s", error)
        raise AdminRefused("the service has no token at the moment; its log says why") from None
    given = request.headers.get(HEADER, "").encode("latin-1")
    if not hmac.compare_digest(*(hashlib.sha256(token).digest() for token in (given, expected))):
        raise AdminRefused(f"{HEADER} is missing or wrong")


def _read_token(file: Path | None) -> bytes:
    try:
        token = file.read_bytes().strip() if file is not None else b""
    except OSError as error:
        raise SettingsRefused(f"{name_of('admin_token_file')}: {file}: {error.strerror or error}") from error
    if len(token) < SHORTEST_TOKEN:
        raise SettingsRefused(
            f"{name_of('admin_token_file')}: {file} holds {len(token)} bytes, at least {SHORTEST_TOKEN} are needed: "
            "for instance `openssl rand -hex 32`"
        )
    return token
