"""The traditional-to-simplified table is OpenCC's; run this file with --write to make it again."""

import sys
from pathlib import Path

import opencc

from lengnuan.model import simplified

PER_LINE = 50
CJK = (range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0x20000, 0x2A6E0))
HEADER = '''"""Traditional to simplified, character by character: OpenCC 1.4.2's t2s over the CJK blocks.

Made by `python tests/test_simplified.py --write`; do not edit. `TRADITIONAL[i]` becomes `SIMPLIFIED[i]`. OpenCC is
Apache-2.0. Its phrase table is left out: one character for one keeps every span on the raw text exact.
"""

'''


def pairs() -> list[tuple[str, str]]:
    """Every single character that OpenCC's t2s changes, followed to its end (薴 -> 苧 -> 苎)."""
    convert = opencc.OpenCC("t2s").convert
    found = []
    for block in CJK:
        for point in block:
            before = after = chr(point)
            while convert(after) != after:
                after = convert(after)
            if after != before:
                found.append((before, after))
    return found


def render(rows: list[tuple[str, str]]) -> str:
    def literal(name: str, text: str) -> str:
        lines = [f'    "{text[i : i + PER_LINE]}"' for i in range(0, len(text), PER_LINE)]
        return f"{name} = (\n" + "\n".join(lines) + "\n)\n"

    traditional, simple = ("".join(column) for column in zip(*rows, strict=True))
    return HEADER + literal("TRADITIONAL", traditional) + "\n" + literal("SIMPLIFIED", simple)


def test_table_is_what_opencc_says() -> None:
    found = pairs()
    assert len(found) > 4000
    assert "".join(before for before, _ in found) == simplified.TRADITIONAL
    assert "".join(after for _, after in found) == simplified.SIMPLIFIED


if __name__ == "__main__" and "--write" in sys.argv:
    Path(simplified.__file__).write_text(render(pairs()), encoding="utf-8")
