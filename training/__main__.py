"""`lengnuan-train`; the sub-commands are in commands.py, which needs the packages of the `train` extra."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; see `lengnuan.training.commands.run` for the exit codes."""
    try:
        from lengnuan.training.commands import run
    except ModuleNotFoundError as error:
        sys.stderr.write(f"lengnuan-train needs the train extra: pip install 'lengnuan[train]' ({error})\n")
        return 2
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
