"""Body landmarks against MediaPipe itself. No test_*.py, since it needs the extra "pose": `make test-pose` runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mediapipe
import numpy as np
import pytest

from chordcache.config.picture import PictureConfig
from chordcache.features.base import VideoInfo
from chordcache.features.pose import PoseExtractor
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media
from chordcache.media.frame import FrameMaker

NUM_FRAMES = 30
SHORT_SIDE = 256


def extract(path: Path, *, stride: int = 1) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows [shape=(T, 33, 4)] of the first frames, and the RGB pictures that they were made of."""
    extractor = PoseExtractor("pose", stride=stride)
    rows, pictures = [], []
    with open_media(str(path)) as media:
        video = media.require_video()
        maker = FrameMaker(PictureConfig(short_side=SHORT_SIDE), video.sample_aspect_ratio)
        assert extractor.begin(VideoInfo("h264", video.width, video.height, has_sound=False)) is None
        for _, decoded in zip(range(NUM_FRAMES), decode_frames(media), strict=False):
            frame = maker.frame(decoded)
            rows.append(extractor.add_frame(frame)["pose"])
            pictures.append(frame.rgb())
    assert not extractor.finish()
    return np.concatenate(rows), pictures


def directly(pictures: list[np.ndarray]) -> np.ndarray:
    """MediaPipe's own landmarks, in pixels [shape=(T, 33, 4)]; NaN where it finds no person."""
    points = np.full((len(pictures), 33, 4), np.nan, np.float32)
    with mediapipe.solutions.pose.Pose(static_image_mode=False) as pose:
        for number, picture in enumerate(pictures):
            height, width = picture.shape[:2]
            landmarks = pose.process(picture).pose_landmarks
            if landmarks:
                shares = [(point.x, point.y, point.z, point.visibility) for point in landmarks.landmark]
                points[number] = np.array(shares) * (width, height, width, 1)
    return points


def check_people(path: Path, min_num_seen: int) -> np.ndarray:
    rows, pictures = extract(path)
    assert rows.dtype == np.float32
    assert rows.shape == (len(pictures), 33, 4)
    np.testing.assert_allclose(rows, directly(pictures), rtol=1e-5, atol=1e-4)
    seen = ~np.isnan(rows).any(axis=(1, 2))
    assert np.array_equal(seen, ~np.isnan(rows).all(axis=(1, 2)))
    assert seen.sum() >= min_num_seen
    return rows


def test_person_in_a_car(clips: Path) -> None:
    rows = check_people(clips / "people" / "carphone_pristine.mp4", NUM_FRAMES)
    nose, shoulders = rows[:, 0], rows[:, 11:13]
    assert ((nose[:, :2] > 0) & (nose[:, :2] < (176, 144))).all()
    assert (nose[:, 1] < shoulders[:, :, 1].min(axis=1)).all()
    assert ((rows[..., 3] >= 0) & (rows[..., 3] <= 1)).all()


@pytest.mark.parametrize(
    ("name", "min_num_seen"),
    [
        ("real/realtime-action-recognition/exercise.avi", 20),  # a person who comes into view
        ("real/golfdb/test_video.mp4", NUM_FRAMES),
        ("real/mmaction2/demo.mp4", 1),  # a person who is lost again
    ],
)
def test_people_of_the_corpus(name: str, min_num_seen: int, corpus: Path) -> None:
    check_people(corpus / name, min_num_seen)


def test_no_person(make_video: Callable[..., Path], tmp_path: Path) -> None:
    rows, _ = extract(make_video(tmp_path / "a.mp4", num_frames=5, size=(320, 240)))
    assert rows.shape == (5, 33, 4)
    assert np.isnan(rows).all()


def test_stride(clips: Path) -> None:
    rows, pictures = extract(clips / "people" / "carphone_pristine.mp4", stride=4)
    looked_at = np.arange(NUM_FRAMES) % 4 == 0
    assert np.isnan(rows[~looked_at]).all()
    np.testing.assert_allclose(rows[looked_at], directly(pictures[::4]), rtol=1e-5, atol=1e-4)
    assert not np.isnan(rows[looked_at]).any()


def test_two_videos_do_not_share_a_tracker(clips: Path, make_video: Callable[..., Path], tmp_path: Path) -> None:
    path = clips / "people" / "carphone_pristine.mp4"
    alone, _ = extract(path)
    extract(make_video(tmp_path / "a.mp4", num_frames=5))
    after, _ = extract(path)
    np.testing.assert_allclose(after, alone, rtol=1e-5, atol=1e-4)


def test_nothing_is_missing() -> None:
    assert PoseExtractor.missing_requirement({}) is None


def run_python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, check=True)


def test_module_does_not_import_mediapipe() -> None:
    code = "import sys, chordcache.features.pose as p; p.PoseExtractor('pose'); print('mediapipe' in sys.modules)"
    assert run_python(code).stdout == "False\n"


def test_mediapipe_is_not_heard(clips: Path) -> None:
    """Its C++ writes to stderr; what others write there afterwards arrives."""
    code = """
import sys
from pathlib import Path
from pose_landmarks import extract
rows, _ = extract(Path(sys.argv[1]))
print(rows.shape[0], file=sys.stderr)
"""
    path = Path(__file__).parent
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n" + code
    done = run_python(code, clips / "people" / "carphone_pristine.mp4")
    assert done.stderr == f"{NUM_FRAMES}\n"
    assert done.stdout == ""
