"""Writing a file so that a reader, or a run that is started again, sees all of it or nothing."""

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text aside and put it in place of `path`."""
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
