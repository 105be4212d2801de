"""The Open Inference Protocol over REST, as its specification has it."""

import json
import struct
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from service_fixtures import STRANGE, STRANGE_ID, FakeEngine, async_test, expected_logits, serving
from test_bad_requests import CANARY
from tiny_bundle import LABELS

from lengnuan.model.probabilities import softmax
from lengnuan.service.compat.messages import InferReply, ModelMetadata
from lengnuan.service.compat.oip import INFER_ERRORS

URL = "/v2/models/tiny/infer"
TEXTS = ["好", "差", "很好看"]
LENGTH = "Inference-Header-Content-Length"


def request(data: Any = TEXTS, shape: Any = None, **others: Any) -> dict[str, Any]:
    shape = [len(data)] if shape is None else shape
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": shape, "data": data}], **others}


def wanted(*names: str, **parameters: Any) -> list[dict[str, Any]]:
    return [{"name": name, **({"parameters": parameters} if parameters else {})} for name in names]


def probabilities(texts: list[str] = TEXTS) -> list[float]:
    return [float(p) for text in texts for p in softmax(np.array(expected_logits(text)))]


def outputs(reply: httpx.Response) -> dict[str, dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    return {output["name"]: output for output in reply.json()["outputs"]}


def check_error(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    assert reply.json().keys() == {"error"}
    assert CANARY not in reply.text
    assert len(reply.content) < 2048
    return str(reply.json()["error"])


@pytest.mark.parametrize(
    ("data", "shape"), [(TEXTS, [3]), (TEXTS, [3, 1]), ([[text] for text in TEXTS], [3, 1])], ids=str
)
def test_texts_may_come_in_either_shape(tmp_path: Path, data: Any, shape: list[int]) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, app):
            reply = await client.post(URL, json=request(data, shape))
            version = app.state.lifecycle.served.bundle.version
        found = outputs(reply)
        InferReply.model_validate(reply.json())
        assert (reply.json()["model_name"], reply.json()["model_version"]) == ("tiny", version)
        assert list(found) == ["label", "probabilities", "truncated"]
        assert [(o["datatype"], o["shape"]) for o in found.values()] == [
            ("BYTES", [3]),
            ("FP32", [3, 2]),
            ("BOOL", [3]),
        ]
        assert found["probabilities"]["data"] == pytest.approx(probabilities(), abs=1e-6)
        rows = np.reshape(probabilities(), (3, 2))
        assert found["label"]["data"] == [LABELS[row.argmax()] for row in rows]
        assert found["truncated"]["data"] == [False] * 3

    run()


@async_test
async def test_only_the_outputs_that_were_asked_for_come_in_that_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        found = outputs(await client.post(URL, json=request(outputs=wanted("logits", "label"))))
    assert list(found) == ["logits", "label"]
    logits = [x for text in TEXTS for x in expected_logits(text)]
    assert found["logits"]["data"] == pytest.approx(logits, abs=1e-5)
    assert (found["logits"]["datatype"], found["logits"]["shape"]) == ("FP32", [3, 2])


@async_test
async def test_the_id_comes_back_and_there_is_always_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        own = await client.post(URL, json=request(id="批次 7"), headers={"X-Request-Id": "q1"})
        header = await client.post(URL, json=request(), headers={"X-Request-Id": "q1"})
        neither = await client.post(URL, json=request())
    assert (own.json()["id"], own.headers["X-Request-Id"]) == ("批次 7", "q1")
    assert header.json()["id"] == "q1"
    assert neither.json()["id"] == neither.headers["X-Request-Id"]


def binary_body(texts: list[str], **others: Any) -> tuple[bytes, dict[str, str]]:
    raw = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    content = request(texts, **others)
    del content["inputs"][0]["data"]
    content["inputs"][0]["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps(content).encode()
    return head + raw, {LENGTH: str(len(head))}


@async_test
async def test_binary_data_in_and_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        body, headers = binary_body(TEXTS, parameters={"binary_data_output": True})
        reply = await client.post(URL, content=body, headers=headers)
    length = int(reply.headers[LENGTH])
    head, tail = json.loads(reply.content[:length]), reply.content[length:]
    sizes = [output["parameters"]["binary_data_size"] for output in head["outputs"]]
    assert all("data" not in output for output in head["outputs"])
    assert sum(sizes) == len(tail)
    numbers = np.frombuffer(tail[sizes[0] : sizes[0] + sizes[1]], "<f4")
    assert numbers == pytest.approx(probabilities(), abs=1e-6)
    first = tail[4 : 4 + struct.unpack_from("<I", tail)[0]].decode()
    assert first == LABELS[int(np.argmax(probabilities()[:2]))]
    assert tail[-3:] == b"\0\0\0"


@async_test
async def test_an_output_may_choose_for_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        chosen = wanted("label", binary_data=False) + wanted("tokens", binary_data=True)
        body, headers = binary_body(TEXTS, parameters={"binary_data_output": True}, outputs=chosen)
        reply = await client.post(URL, content=body, headers=headers)
    length = int(reply.headers[LENGTH])
    label, tokens = json.loads(reply.content[:length])["outputs"]
    assert len(label["data"]) == 3
    assert np.frombuffer(reply.content[length:], "<i8").tolist() == [1, 1, 2]
    assert tokens["datatype"] == "INT64"


@async_test
async def test_metadata_is_what_infer_does(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, app):
        version = app.state.lifecycle.served.bundle.version
        server = (await client.get("/v2")).json()
        plain, versioned = [await client.get(f"/v2/models/tiny{path}") for path in ("", f"/versions/{version}")]
        model = ModelMetadata.model_validate(plain.json())
        names = [output.name for output in model.outputs]
        found = outputs(
            await client.post(f"/v2/models/tiny/versions/{version}/infer", json=request(outputs=wanted(*names)))
        )
    assert (server["name"], server["extensions"]) == ("lengnuan", ["binary_tensor_data"])
    assert versioned.json() == plain.json()
    assert (model.name, model.versions, model.labels) == ("tiny", [version], list(LABELS))
    for output in model.outputs:
        assert found[output.name]["datatype"] == output.datatype
        assert found[output.name]["shape"] == [3 if size == -1 else size for size in output.shape]


@async_test
async def test_readiness_is_that_of_the_model(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, app):
        paths = ("/v2/health/ready", "/v2/models/tiny/ready")
        live = await client.get("/v2/health/live")
        ready = [await client.get(path) for path in paths]
        app.state.lifecycle.drain()
        draining = [await client.get(path) for path in paths]
        await app.state.lifecycle.stop()
        stopped = [await client.get(path) for path in (*paths, "/v2/health/live")]
    assert live.json() == {"live": True}
    assert [reply.json() for reply in ready] == [{"ready": True}, {"name": "tiny", "ready": True}]
    for reply in (*draining, *stopped):
        check_error(reply, 503)


@pytest.mark.parametrize("path", ["", "/ready", "/infer", "/versions/1", "/versions/1/ready", "/versions/1/infer"])
def test_another_model_or_version_is_404(tmp_path: Path, path: str) -> None:
    @async_test
    async def run() -> None:
        model = "tiny" if "versions" in path else CANARY
        async with serving(tmp_path) as (client, _):
            url = f"/v2/models/{model}{path}"
            reply = await (client.post(url, json=request()) if path.endswith("infer") else client.get(url))
        check_error(reply, 404)

    run()


def with_input(**fields: Any) -> dict[str, Any]:
    body = request()
    body["inputs"][0] |= fields
    return body


BAD: list[tuple[Any, int]] = [
    ([], 422),
    ({"inputs": []}, 422),
    ({"inputs": request()["inputs"] * 2}, 422),
    (with_input(name=CANARY), 422),
    (with_input(datatype="FP32"), 422),
    (with_input(shape=[4]), 422),
    (with_input(shape=[1, 3]), 422),
    (with_input(shape=[3, 1, 1]), 422),
    (with_input(shape=[-1] * 1000), 422),
    (with_input(data=CANARY), 422),
    (with_input(data=[1, 2, 3]), 422),
    (with_input(data=[["好", "差"]] * 3), 422),
    (with_input(parameters={"binary_data_size": 5}), 422),
    (with_input(parameters={CANARY: 5}), 422),
    (with_input(extra=CANARY), 422),
    (request([""], [1]), 422),
    (request([], [0]), 422),
    (request(["a" * 51]), 413),
    (request(["a"] * 4), 413),
    (request(["a" * 60_000]), 413),
    (request(outputs=wanted("nope")), 422),
    (request(outputs=wanted("label", binary=True)), 422),
    (request(outputs=[CANARY] * 1000), 422),
    (request(parameters={"priority": 1}), 422),
    (request(parameters={"on_long": CANARY}), 422),
    (request(parameters={"timeout": 10**9}), 422),
    (request(id=5), 422),
    (request(id="x" * 1000), 422),
    (request([STRANGE]), 500),
]


@async_test
async def test_every_mistake_is_told_in_the_protocols_shape(tmp_path: Path) -> None:
    engine = FakeEngine(nan=STRANGE_ID)
    async with serving(tmp_path, engine, max_texts=3, max_chars=50, max_body_bytes=50_000) as (client, _):
        for body, status in BAD:
            check_error(await client.post(URL, json=body), status)
        unknown = check_error(await client.post(URL, json=request(parameters={"raw_scores": True})), 422)
        for content in (b"", b"\xff", b"{", b"[" * 3000):
            check_error(await client.post(URL, content=content), 400)
        check_error(await client.post(URL, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    assert "raw_scores" in unknown


@pytest.mark.parametrize("length", ["-1", "x", "99999", "9" * 5000, "³"])
def test_a_false_length_of_the_json_part(tmp_path: Path, length: str) -> None:
    @async_test
    async def run() -> None:
        async with serving(tmp_path) as (client, _):
            body, _ = binary_body(TEXTS)
            check_error(await client.post(URL, content=body, headers={LENGTH: length.encode()}), 422)

    run()


@pytest.mark.parametrize(
    ("raw", "status"),
    [(b"\x01\0\0", 422), (b"\xff\xff\xff\xff", 422), (b"\x05\0\0\0ab", 422), (b"\x02\0\0\0\xba\xc3", 400), (b"", 422)],
)
def test_binary_texts_that_are_broken(tmp_path: Path, raw: bytes, status: int) -> None:
    @async_test
    async def run() -> None:
        content = request(["x"])
        del content["inputs"][0]["data"]
        content["inputs"][0]["parameters"] = {"binary_data_size": len(raw)}
        head = json.dumps(content).encode()
        async with serving(tmp_path) as (client, _):
            check_error(await client.post(URL, content=head + raw, headers={LENGTH: str(len(head))}), status)
            content["inputs"][0]["parameters"] = {"binary_data_size": len(raw) + 1}
            head = json.dumps(content).encode()
            check_error(await client.post(URL, content=head + raw, headers={LENGTH: str(len(head))}), 422)

    run()


@async_test
async def test_the_timeout_is_in_microseconds(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with serving(tmp_path, engine) as (client, _):
        engine.gate.clear()
        late = await client.post(URL, json=request(parameters={"timeout": 10_000}))
        engine.gate.set()
    assert "queue" in check_error(late, 504) or "infer" in late.text


@async_test
async def test_a_mistake_of_our_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as (client, _):
        monkeypatch.setattr("lengnuan.service.compat.oip._reply", None)
        check_error(await client.post(URL, json=request()), 500)


@async_test
async def test_every_error_is_documented(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, _):
        paths = (await client.get("/openapi.json")).json()["paths"]
    for version in ("", "/versions/{version}"):
        responses = paths[f"/v2/models/{{name}}{version}/infer"]["post"]["responses"]
        assert responses.keys() == {"200", *(str(error.status) for error in INFER_ERRORS)}
        assert responses["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/InferError")
        assert responses["200"]["content"].keys() == {"application/json", "application/octet-stream"}
