"""The reading of a JSON body: strict, once, and without ever quoting the caller."""

import json
import re
from typing import Any, NoReturn, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from lengnuan.model.text import has_lone_surrogate
from lengnuan.service.errors import (
    EmptyBody,
    InvalidJson,
    InvalidRequest,
    InvalidUnicode,
    NotUtf8,
    ServiceError,
    UnknownField,
)

_NAMEABLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_BOM = b"\xef\xbb\xbf"


class Body(BaseModel):
    """A JSON body. Whatever it does not have as a field is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def from_body(cls, body: bytes) -> Self:
        """Read a body.

        Raises:
            ServiceError: 400 for what is not JSON in UTF-8, 422 for JSON that is not such a request.
        """
        content = _read_json(body)
        if not isinstance(content, dict):
            raise InvalidRequest(f"the body must be a JSON object with the field {next(iter(cls.model_fields))}")
        return cls.from_fields(content)

    @classmethod
    def from_fields(cls, content: dict[str, Any]) -> Self:
        """Check the fields of a body or of a query; 422 for those that are not such a request."""
        # Before anything else, since pydantic makes an error of each of them.
        unknown = next((name for name in content if name not in cls.model_fields), None)
        if unknown is not None:
            raise _unknown_field(unknown)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise _refusal(error) from None


def _read_json(body: bytes) -> Any:
    if not body:
        raise EmptyBody('the request has no body; it needs JSON such as {"input": "..."}')
    if body.startswith(_BOM):
        raise NotUtf8("the body starts with a byte order mark; send UTF-8 without one")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotUtf8(f"the body must be UTF-8; byte {error.start} is not (is it GBK or UTF-16?)") from None
    if "\0" in text:
        raise NotUtf8("the body must be UTF-8; its zero bytes look like UTF-16")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise InvalidJson("the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidJson(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except ValueError:  # an integer with thousands of digits
        raise InvalidJson("the body has a number with too many digits") from None


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidJson(f"the body has {name}, which is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _unknown_field(name: str) -> ServiceError:
    if has_lone_surrogate(name):
        return InvalidUnicode("the name of a field holds half of a surrogate pair")
    param = name if _NAMEABLE.fullmatch(name) else None
    return UnknownField(f"unknown field {param or '(its name is not repeated here)'}", param=param)


def _refusal(error: ValidationError) -> ServiceError:
    """The one problem worth telling: the deepest, since a union reports every branch that it tried."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    problem = max(problems, key=lambda p: len(p["loc"]))
    name, last = str(problem["loc"][0]), problem["loc"][-1]
    if problem["type"] == "string_unicode":
        return InvalidUnicode(f"{name} holds half of a surrogate pair", param=name)
    if problem["type"] == "extra_forbidden":
        return _unknown_field(str(last))
    if name == "input" and len(problem["loc"]) > 1:
        return InvalidRequest(
            "input must be a string or a list of strings", param="input", index=last if isinstance(last, int) else None
        )
    return InvalidRequest(f"{name}: {problem['msg']}", param=name)
