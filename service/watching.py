"""Looking now and then whether another bundle is where a model came from."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lengnuan.model.bundle import version_at
from lengnuan.model.errors import BundleRefused
from lengnuan.model.store import bundle_folder
from lengnuan.service.slots import ModelSlot
from lengnuan.service.threads import EngineThreads

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sight:
    """What lies there: the version that the manifest makes, and every file with its size and time; or what is wrong."""

    version: str
    files: tuple[tuple[str, int, int], ...]
    problem: str = ""


async def watch(
    slots: Sequence[ModelSlot],
    every_s: float,
    loader: EngineThreads,
    reload: Callable[[Sequence[ModelSlot]], Awaitable[object]],
) -> None:
    """Reload a model when what is there has changed, and then stayed as it is from one look to the next.

    So a folder that is still being written is left alone, and a bundle that was refused is tried again only when
    something about it has changed. Runs until it is cancelled.

    Args:
        slots: what to look at.
        every_s: time between looks.
        loader: where to look from, since a disk may be slow.
        reload: called with those that have changed.
    """
    tried: dict[str, Sight] = {}
    before: dict[str, Sight] = {}
    while True:
        await asyncio.sleep(every_s)
        for slot in slots:
            sight = await loader.run(look, slot.where)
            settled, before[slot.name] = sight == before.get(slot.name), sight
            if not settled or sight == tried.get(slot.name):
                continue
            first, tried[slot.name] = slot.name not in tried, sight
            if first and slot.served is not None and slot.served.bundle.version == sight.version:
                continue  # what was loaded at the start
            log.info("the bundle has changed", extra={"fields": {"model": slot.name, "version": sight.version}})
            await reload([slot])


def look(where: Path) -> Sight:
    """What lies at a bundle's place now; cheap, since of all the files it reads the manifest only."""
    try:
        folder = bundle_folder(where)
        version = version_at(folder)
        found = ((file, file.stat()) for file in sorted(folder.rglob("*")) if file.is_file())
        return Sight(version, tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in found))
    except (BundleRefused, OSError) as error:
        return Sight("", (), str(error))
