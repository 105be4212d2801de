"""The headers under which pages and answers go to a browser."""

import base64
import hashlib
import re
from pathlib import Path

from service_fixtures import async_test, serving


@async_test
async def test_the_policy_of_docs_lets_run_what_the_page_has_and_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        page = await client.get("/docs")
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        files = {path: (await client.get(path)).status_code for path in loaded}
    policy = dict(part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; "))
    [inline] = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    assert policy["script-src"] == f"'self' 'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert len(files) == 3
    assert set(files.values()) == {200}
    assert all(path.startswith("/static-offline-docs/") for path in files)
    assert (page.headers["Referrer-Policy"], page.headers["X-Frame-Options"]) == ("no-referrer", "DENY")


@async_test
async def test_no_answer_s_type_is_guessed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        replies = [
            *[await client.get(path) for path in ("/docs", "/v1/models", "/nowhere", "/metrics")],
            await client.post("/v1/classify", json={"input": "好"}),
        ]
    assert {reply.headers["X-Content-Type-Options"] for reply in replies} == {"nosniff"}
