"""What the tests of `lengnuan-classify` share."""

import json
from pathlib import Path
from typing import Any


def items(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def review_file(folder: Path, rows: int = 30) -> Path:
    """Texts of mixed lengths, a blank line at row 7 and a line without a tab at row 11."""
    lines = [f"{'电影很!ab'[: i % 6]}{'好差'[i % 2] * 2}\t{i % 2}" for i in range(rows)]
    lines[7], lines[11] = "", "没有制表符"
    file = folder / "reviews.tsv"
    file.write_text("\n".join(["text\tlabel", *lines, ""]), encoding="utf-8")
    return file
