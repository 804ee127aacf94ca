"""Effects of importing OpenCV on the processes that are started later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_no_library_is_taken_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "libc.so.6").write_text("every process needs this one, and none can start from here")
    start = "import subprocess, sys; {}; subprocess.run([sys.executable, '-c', ''], check=True)"
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    own, plain = (
        subprocess.run(
            [sys.executable, "-c", start.format(imports)], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        for imports in ("from chordcache.media.opencv import cv2", "import cv2")
    )
    assert own.returncode == 0, own.stderr
    assert "libc.so.6" in plain.stderr  # otherwise the module is not needed
