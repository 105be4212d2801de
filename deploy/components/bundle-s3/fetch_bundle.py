"""Fetch a bundle (.tar.gz) over HTTPS, check its sha256, unpack it. Standard library only, as the serving image has it.

Usage: fetch_bundle.py FOLDER. Environment: BUNDLE_URL, BUNDLE_SHA256; for a private bucket of S3 or something like it
also AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION (us-east-1) and, if you have one, AWS_SESSION_TOKEN.
Exit codes: 0 done, 1 not fetched, 2 a wrong setting, 3 not the bundle that was asked for. Nothing is left half done:
the archive is checked before a file of it is written, and the service checks every file again.
"""

import hashlib
import hmac
import os
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

NOTHING = hashlib.sha256(b"").hexdigest()  # the checksum of an empty request body
ATTEMPTS = 5


def signed(
    url: str, environ: Mapping[str, str], now: datetime, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Headers of a GET that S3 accepts: AWS Signature Version 4.

    Source: "Authenticating Requests: Using the Authorization Header" in the Amazon S3 API reference.
    """
    parts = urllib.parse.urlsplit(url)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    region = environ.get("AWS_REGION") or "us-east-1"
    headers = {"host": parts.netloc, "x-amz-content-sha256": NOTHING, "x-amz-date": stamp, **(more or {})}
    if environ.get("AWS_SESSION_TOKEN"):
        headers["x-amz-security-token"] = environ["AWS_SESSION_TOKEN"]
    names = ";".join(sorted(headers))
    query = "&".join(sorted(part if "=" in part else f"{part}=" for part in parts.query.split("&") if part))
    lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
    request = "\n".join(["GET", parts.path or "/", query, *lines, "", names, NOTHING])
    scope = f"{day}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + environ["AWS_SECRET_ACCESS_KEY"]).encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"{environ['AWS_ACCESS_KEY_ID']}/{scope}"
    headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}"
    return headers


def fetch(url: str, environ: Mapping[str, str], archive: Path) -> str:
    """Download to `archive`; returns its sha256."""
    headers = signed(url, environ, datetime.now(UTC)) if environ.get("AWS_ACCESS_KEY_ID") else {}
    digest = hashlib.sha256()
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as reply, archive.open("wb") as file:
        while block := reply.read(1 << 20):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def unpack(archive: Path, folder: Path) -> None:
    """The files of the bundle, which may be in one folder of the archive, into `folder`; no links, no way out."""
    with tarfile.open(archive) as tar:
        manifests = [name for name in tar.getnames() if Path(name).name == "manifest.json"]
        if not manifests:
            raise tarfile.TarError("it holds no manifest.json")
        top = min((Path(name).parent for name in manifests), key=lambda path: len(path.parts))
        for member in tar:
            if member.isfile() and Path(member.name).is_relative_to(top):
                member.name = str(Path(member.name).relative_to(top))
                tar.extract(member, folder, filter="data")


def main(folder: Path, environ: Mapping[str, str]) -> int:
    """Returns the exit code."""
    url, wanted = environ.get("BUNDLE_URL", ""), environ.get("BUNDLE_SHA256", "").lower()
    if not url.startswith(("https://", "http://")) or len(wanted) != len(NOTHING):
        sys.stderr.write(
            "set BUNDLE_URL to an https address and BUNDLE_SHA256 to the 64 digits that sha256sum prints\n"
        )
        return 2
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        archive = Path(scratch) / "bundle.tar.gz"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                found = fetch(url, environ, archive)
                break
            except (urllib.error.URLError, OSError) as error:
                sys.stderr.write(f"attempt {attempt} of {ATTEMPTS}: {error}\n")
                if attempt == ATTEMPTS:
                    return 1
                time.sleep(2**attempt)
        if found != wanted:
            sys.stderr.write(f"the archive's sha256 is {found}, not {wanted}: nothing was unpacked\n")
            return 3
        try:
            unpack(archive, folder)
        except (tarfile.TarError, EOFError, OSError) as error:
            sys.stderr.write(f"the archive is no bundle: {error}\n")
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), os.environ))
