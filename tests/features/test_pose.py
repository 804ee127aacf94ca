"""The feature "pose" where MediaPipe is missing. What it finds is tested in pose_landmarks.py, by `make test-pose`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MISSING = "needs the package mediapipe; run: pip install 'chordcache[pose]'"

PRINT_REQUIREMENT = "from chordcache.features.pose import PoseExtractor; print(PoseExtractor.missing_requirement({}))"


def message_with(folder: Path) -> str:
    """Return the message of an interpreter that finds packages in this folder first."""
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", PRINT_REQUIREMENT],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_missing_extra_is_reported(tmp_path: Path) -> None:
    assert message_with(tmp_path) == MISSING


def test_looking_for_it_does_not_import_it(tmp_path: Path) -> None:
    (tmp_path / "mediapipe.py").write_text("raise SystemExit('imported')")
    assert message_with(tmp_path) == "None"
