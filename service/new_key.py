"""`lengnuan-key NAME`: make an API key. The key goes to stderr, once; its lines for the keys file to stdout."""

import argparse
import hashlib
import re
import secrets
import sys

from lengnuan.service.keys import NAME

PREFIX = "ln_"  # so that a key that got lost in a text can be searched for
BYTES = 32


def main(argv: list[str] | None = None) -> int:
    """Write a new key and its lines; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="lengnuan-key",
        description="Make an API key: shown once on stderr, its lines for LENGNUAN_KEYS_FILE on stdout.",
        epilog="lengnuan-key shop >> keys.toml",
    )
    parser.add_argument("name", metavar="NAME", help="whose key it is: letters, digits, - and _")
    name = parser.parse_args(argv).name
    if not re.fullmatch(NAME, name):
        parser.error("NAME must be 1 to 64 letters, digits, - or _")
    key = PREFIX + secrets.token_urlsafe(BYTES)
    sys.stdout.write(f'[{name}]\nsha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n')
    sys.stdout.flush()
    sys.stderr.write(f"the key of {name}, kept nowhere:\n{key}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
