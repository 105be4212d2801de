"""The table of docs/http.md: every status that the service can answer, and a test that is really there."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service_fixtures import async_test, serving

from lengnuan.service.errors import ServiceError

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "http.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Every status")[2].partition("\n## ")[0]
ROWS = [re.split(r" *\| *", line.strip("| ")) for line in SECTION.splitlines() if re.match(r"\| \d", line)]


def kinds(kind: type[ServiceError] = ServiceError) -> Iterator[type[ServiceError]]:
    for below in kind.__subclasses__():
        yield from kinds(below)
        yield below


@functools.cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_error_of_the_service_is_in_the_table() -> None:
    listed = {(int(status), code) for status, codes, *_ in ROWS for code in re.findall(r"`(\w+)`", codes)}
    assert listed == {(kind.status, kind.code) for kind in kinds()}


@async_test
async def test_every_documented_status_is_in_the_section(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        paths: dict[str, Any] = (await client.get("/openapi.json")).json()["paths"]
    documented = {status for path in paths.values() for operation in path.values() for status in operation["responses"]}
    assert documented <= set(re.findall(r"\b\d{3}\b", SECTION))
    assert documented - {status for status, *_ in ROWS} == {"424"}  # of another protocol


def test_every_named_test_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", SECTION)
    assert len(named) > len(ROWS)
    assert all(re.search(r"::test_", row[2]) for row in ROWS)
    assert [f"{file}::{name}" for file, name in named if name not in functions(file)] == []
