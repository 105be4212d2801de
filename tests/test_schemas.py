"""Reading a request body: which ones are refused, with which code, naming what."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lengnuan.service.errors import ServiceError
from lengnuan.service.schemas import ClassifyRequest


def refusal(body: bytes | dict[str, Any] | list[Any] | str | int | None) -> ServiceError:
    with pytest.raises(ServiceError) as error:
        ClassifyRequest.from_body(body if isinstance(body, bytes) else json.dumps(body).encode())
    return error.value


def test_defaults() -> None:
    request = ClassifyRequest.from_body('{"input": "好"}'.encode())
    assert request.texts == ["好"]
    assert (request.on_long, request.partial, request.return_logits) == ("truncate", False, False)


def test_optional_fields_may_be_null() -> None:
    assert ClassifyRequest.from_body(b'{"input": ["a"], "model": null, "top_k": null}').top_k is None


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "empty_body"),
        ('{"input": "好"}'.encode("gbk"), "not_utf8"),
        ('{"input": "好"}'.encode("utf-16"), "not_utf8"),
        ('{"input": "a"}'.encode("utf-16-le"), "not_utf8"),
        ('{"input": "好"}'.encode("utf-8-sig"), "not_utf8"),
        (b'{"input": NaN}', "invalid_json"),
        (b'{"input": "a", "top_k": -Infinity}', "invalid_json"),
        (b'{"input": "a"', "invalid_json"),
        (b'{"input": "a"} {}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"input": "a", "top_k": ' + b"1" * 5000 + b"}", "invalid_json"),
    ],
)
def test_what_is_not_json_in_utf8_is_400(body: bytes, code: str) -> None:
    error = refusal(body)
    assert (error.status, error.code) == (400, code)


def test_gbk_gets_a_hint() -> None:
    assert "UTF-8" in refusal('{"input": "好"}'.encode("gbk")).message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": 1}, "input"),
        ({"input": None}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": "a", "top_k": 0}, "top_k"),
        ({"input": "a", "top_k": 1.0}, "top_k"),
        ({"input": "a", "top_k": True}, "top_k"),
        ({"input": "a", "top_k": 2**31}, "top_k"),
        ({"input": "a", "timeout_ms": 0}, "timeout_ms"),
        ({"input": "a", "timeout_ms": 2**31}, "timeout_ms"),
        ({"input": "a", "partial": 1}, "partial"),
        ({"input": "a", "return_logits": "yes"}, "return_logits"),
        ({"input": "a", "on_long": "middle"}, "on_long"),
        ({"input": "a", "model": 3}, "model"),
        ([], None),
        ("a", None),
        (5, None),
        (None, None),
    ],
)
def test_what_is_no_such_request_is_422_and_names_the_field(body: Any, param: str | None) -> None:
    error = refusal(body)
    assert (error.status, error.code, error.param) == (422, "invalid_request", param)


@pytest.mark.parametrize("wrong", [1, None, ["a"], {"a": 1}, True])
def test_a_list_with_something_else_than_text_names_its_place(wrong: Any) -> None:
    assert refusal({"input": ["a", "b", wrong]}).index == 2


def test_a_list_of_many_things_that_are_no_text_makes_one_error_for_each_type_of_input() -> None:
    with pytest.raises(ValidationError) as error:
        ClassifyRequest.model_validate({"input": ["a"] + [1] * 200_000})
    assert [problem["loc"][1:] for problem in error.value.errors()] == [("str",), ("list[str]", 1)]


def test_unknown_fields_are_refused_before_anything_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassifyRequest, "model_validate", pytest.fail)
    assert refusal({"input": "a", **{f"field{n}": n for n in range(1000)}}).param == "field0"


def test_an_unknown_field_is_refused_by_name() -> None:
    error = refusal({"input": "a", "raw_score": True})
    assert (error.status, error.code, error.param) == (422, "unknown_field", "raw_score")


@pytest.mark.parametrize("name", ["秘密", "a" * 65, "a b", ""])
def test_a_name_that_could_be_somebodys_text_is_not_repeated(name: str) -> None:
    error = refusal({"input": "a", name: 1})
    assert (error.code, error.param) == ("unknown_field", None)
    assert not name or name not in error.message


def test_half_a_surrogate_pair_in_a_name() -> None:
    error = refusal(b'{"input": "a", "\\ud83d": 1}')
    assert (error.code, error.param) == ("invalid_unicode", None)


def test_half_a_surrogate_pair_in_a_value_names_the_field() -> None:
    error = refusal(b'{"input": "a", "on_long": "\\ud83d"}')
    assert (error.code, error.param) == ("invalid_unicode", "on_long")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from([*ClassifyRequest.model_fields, "inputs", "秘密"])


def status(body: bytes) -> int:
    try:
        ClassifyRequest.from_body(body)
    except ServiceError as error:
        return error.status
    return 200


@given(st.dictionaries(FIELDS, JSON, max_size=5) | JSON)
def test_any_json_is_a_request_or_a_refusal(content: Any) -> None:
    assert status(json.dumps(content).encode()) in {200, 422}


@given(st.binary(max_size=60))
def test_any_bytes_are_a_refusal(body: bytes) -> None:
    assert status(body) in {400, 422}
