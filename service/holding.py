"""Who still uses a model that another has replaced: it is given up when the last request on it has ended."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

HELD = "held_models"


class Holders:
    """Counts those who use something; belongs to the event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._nobody = asyncio.Event()
        self._nobody.set()

    def enter(self) -> None:
        """One more."""
        self._count += 1
        self._nobody.clear()

    def leave(self) -> None:
        """One less."""
        self._count -= 1
        if not self._count:
            self._nobody.set()

    async def wait_for_nobody(self) -> None:
        """Return when nobody is left."""
        await self._nobody.wait()


class LeaveAtTheEnd:
    """Middleware: a request holds the models that it was given (`hold`) until its last byte is out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, then leave."""
        try:
            await self._app(scope, receive, send)
        finally:
            for holders in scope.get("state", {}).pop(HELD, ()):
                holders.leave()


def hold(scope: Scope, holders: Holders) -> None:
    """Let the request be one of the holders until it ends."""
    holders.enter()
    scope["state"].setdefault(HELD, []).append(holders)
