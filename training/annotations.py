"""What annotation tools export, item by item: a text and the names of its labels; and the same the other way round.

doccano       JSONL, `{"text", "label": ["正面"]}`; also "labels", and the older `"annotations": [{"label": 2}]` by id
label-studio  JSON, a list of tasks with "annotations" (or "completions"); also JSON_MIN
argilla       JSON or JSONL, records of version 2 (`to_json`), and of the feedback and text classification tasks before
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TOOLS = ("doccano", "label-studio", "argilla")
FORMATS = ("table", "folders", *TOOLS)  # that `data convert` reads and writes
CONFIRMED, SUGGESTED = "confirmed", "suggested"


@dataclass(frozen=True)
class Annotated:
    """One item.

    Args:
        text: as it stands there.
        labels: what each person, or else each suggestion, chose; no choice is no item of this list.
        source: `CONFIRMED` by a person, or `SUGGESTED` by a program.
    """

    text: Any
    labels: tuple[Any, ...]
    source: str = CONFIRMED


def read_item(tool: str, item: Mapping[str, Any], text_field: str, label_field: str) -> Annotated:
    """The text and labels of an item of that tool's export.

    Args:
        tool: one of `TOOLS`.
        item: a task, record or document.
        text_field: name of its text: a column or a field.
        label_field: name of the question or control; a tool with one only doesn't look at it.

    Raises:
        ValueError: it has not the form of such an item.
    """
    readers: dict[str, Callable[[Mapping[str, Any], str, str], Annotated]] = {
        "doccano": _doccano,
        "label-studio": _label_studio,
        "argilla": _argilla,
    }
    try:
        return readers[tool](item, text_field, label_field)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an item of {tool}: {type(error).__name__} {error}") from error


def write_item(tool: str, number: int, text: str, label: str, fields: tuple[str, str]) -> dict[str, Any]:
    """An item that the tool imports; `fields`: the names of the text and of the label there."""
    text_field, label_field = fields
    if tool == "doccano":
        return {"id": number, text_field: text, "label": [label]}
    if tool == "label-studio":
        choice = {"from_name": label_field, "to_name": text_field, "type": "choices", "value": {"choices": [label]}}
        return {"id": number, "data": {text_field: text}, "annotations": [{"result": [choice]}]}
    # A response needs the id of a user of that server; a suggestion is what its annotators confirm or change.
    suggestion = {"value": label, "score": None, "agent": "lengnuan"}
    content: dict[str, Any] = {"metadata": {}, "responses": {}, "vectors": {}}
    return {"id": str(number), "fields": {text_field: text}, "suggestions": {label_field: suggestion}, **content}


def _doccano(item: Mapping[str, Any], text_field: str, _: str) -> Annotated:
    if "annotations" in item:
        return Annotated(_text(item, text_field), tuple(found["label"] for found in item["annotations"]))
    return Annotated(_text(item, text_field), tuple(_several(item.get("label", item.get("labels")))))


def _label_studio(item: Mapping[str, Any], text_field: str, label_field: str) -> Annotated:
    done = item.get("annotations", item.get("completions"))
    if done is None:  # JSON_MIN: the task's fields and the choices side by side
        return Annotated(_text(item, text_field), tuple(_several(item.get(label_field))))
    text = _text(item["data"], text_field)
    labels = tuple(_choices(done, label_field))
    if labels:
        return Annotated(text, labels)
    return Annotated(text, tuple(_choices(item.get("predictions") or (), label_field)), SUGGESTED)


def _choices(annotations: Iterable[Mapping[str, Any]], label_field: str) -> Iterator[Any]:
    """The choices made; those of the control `label_field` where there are several controls."""
    results = [r for a in annotations if not a.get("was_cancelled") for r in a["result"] if r.get("type") == "choices"]
    controls = {result.get("from_name") for result in results}
    for result in results:
        if len(controls) == 1 or result.get("from_name") == label_field:
            yield from _several(result["value"]["choices"])


def _argilla(item: Mapping[str, Any], text_field: str, label_field: str) -> Annotated:
    if "fields" not in item:  # text classification, before version 2
        inputs = item.get("inputs")
        text = item.get("text") or (inputs if isinstance(inputs, str) else _text(inputs or {}, text_field))
        return Annotated(text, tuple(_several(item.get("annotation"))))
    text = _text(item["fields"], text_field)
    responses = item.get("responses") or {}
    if isinstance(responses, Mapping):
        labels = tuple(answer["value"] for answer in responses.get(label_field, ()))
    else:  # feedback, before version 2: a list of users
        submitted = [answer["values"] for answer in responses if answer.get("status", "submitted") == "submitted"]
        labels = tuple(values[label_field]["value"] for values in submitted if label_field in values)
    if labels:
        return Annotated(text, labels)
    suggested = item.get("suggestions") or {}
    if isinstance(suggested, Mapping):
        values = [suggested[label_field]["value"]] if label_field in suggested else []
    else:
        values = [found["value"] for found in suggested if found.get("question_name") == label_field]
    return Annotated(text, tuple(values), SUGGESTED)


def _text(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"no field {name!r}; it has {sorted(fields)[:10]}: name it with --text-column")
    return fields[name]


def _several(value: Any) -> list[Any]:
    """A label, a list of them, or what Label Studio makes of several: `{"choices": [...]}`, at times as a string."""
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(value)
        except ValueError:
            return [value]  # a name such as [泪]
    if isinstance(value, Mapping):
        value = value["choices"]
    return value if isinstance(value, list) else [] if value in (None, "") else [value]
