"""Fixtures that every test file may use: real clips, the corpus, videos made to measure, the command line.

Environment
-----------
CHORDCACHE_CORPUS
    A folder of further real media. Tests that ask for ``corpus`` have that mark, and are skipped without it.
CHORDCACHE_REQUIRE_CORPUS=1
    Every skip is a failure, that of a missing corpus too.
CI=true
    Every skip is a failure, except that of a missing corpus.
HYPOTHESIS_PROFILE=explore
    New random examples at each run; without it the same ones each time.

Other variables CHORDCACHE_* are removed: they are options of the command line, and could name a cache of the developer.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import hypothesis
import numpy as np
import pytest
from click.testing import CliRunner
from helpers import processes, small_disks
from helpers.inline import HERE

import chordcache as cc
import chordcache.media.opencv  # before a test imports cv2, which puts the working folder into LD_LIBRARY_PATH
from chordcache.cli import cli
from chordcache.engine import pool
from chordcache.engine.choice import Engine, engine_of

REPOSITORY = Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


multiprocessing.set_forkserver_preload(["torch"])  # each process that it forks would take two seconds to import it

for variable in [name for name in os.environ if name.startswith("CHORDCACHE_")]:
    if variable not in ("CHORDCACHE_CORPUS", "CHORDCACHE_REQUIRE_CORPUS", processes.MARK):
        del os.environ[variable]

LONGEST_FILES = (
    "test_truth_corpus.py",
    "test_limits.py",
    "test_estimate.py",
    "test_frameworks.py",
    "test_build.py",
    "test_truth_frames.py",
    "test_bench.py",
    "test_run_output.py",
    "test_on_miss.py",
    "test_pool.py",
    "test_latents_feature.py",
    "test_background_builds.py",
    "test_dataset.py",
    "test_bad_features.py",
)
"""Test files that take a minute or more, the longest first"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the corpus. Begin with the files that take minutes, so that no worker is idle at the end."""
    for item in items:
        if "corpus" in getattr(item, "fixturenames", ()):
            item.add_marker("corpus")
    places = {name: place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


# Skips that are failures

REQUIRE_CORPUS = os.environ.get("CHORDCACHE_REQUIRE_CORPUS") == "1"
NO_SKIPS = REQUIRE_CORPUS or os.environ.get("CI") == "true"
NO_CORPUS = "no corpus: set CHORDCACHE_CORPUS to a folder of media"


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where skips are not allowed; an expected failure is none."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not report.skipped or hasattr(report, "wasxfail") or (NO_CORPUS in reason and not REQUIRE_CORPUS):
        return
    report.outcome = "failed"
    report.longrepr = f"skipped where skips are failures (CI, CHORDCACHE_REQUIRE_CORPUS): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if NO_SKIPS:
        fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if NO_SKIPS:
        fail_if_skipped(report)
    return report


# Real media


@pytest.fixture(scope="session")
def clips() -> Path:
    """Folder of four real clips, downloaded at the first run. Do not write into it.

    animation/bigbuckbunny.mp4, street/bikes.mp4, people/carphone_pristine.mp4, people/carphone_distorted.mp4
    """
    folder = REPOSITORY / ".clips"
    with (REPOSITORY / ".clips.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the xdist workers come here at the same time
        subprocess.run([sys.executable, REPOSITORY / "scripts/fetch_clips.py", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Folder that CHORDCACHE_CORPUS names. Do not write into it."""
    name = os.environ.get("CHORDCACHE_CORPUS")
    if not name:
        pytest.skip(NO_CORPUS)
    if not Path(name).is_dir():
        pytest.fail(f"CHORDCACHE_CORPUS is {name}, which is not a folder")
    return Path(name)


# Media made to measure

CHROMA = (110, 150)
"""U and V of every made frame"""


def make_planes(number: int, width: int, height: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Content of frame ``number`` of a made video, as limited-range BT.601 YUV 4:2:0.

    A flat background of luma ``16 + 7 * number % 200``, so that two frames near each other are never alike, and on it
    a square, an eighth of the height wide, 100 gray levels away, that moves 4 pixels to the right per frame. It
    starts at a quarter of the height, at the left edge. Chroma is flat, see ``CHROMA``.

    Returns
    -------
    tuple of np.ndarray [shape=(H, W), (H/2, W/2), (H/2, W/2), dtype=uint8, 16 to 215 for luma]

    Examples
    --------
    >>> y, u, v = make_planes(30, 64, 48)
    >>> int(y[0, 0]), int(u[0, 0]), int(v[0, 0])
    (26, 110, 150)
    """
    background = 7 * number % 200
    y = np.full((height, width), 16 + background, np.uint8)
    side = max(2, height // 8)
    left = 4 * number % max(1, width - side)
    y[height // 4 : height // 4 + side, left : left + side] = 16 + (background + 100) % 200
    u, v = (np.full((height // 2, width // 2), value, np.uint8) for value in CHROMA)
    return y, u, v


@dataclass(frozen=True)
class VideoSpec:
    """Parameters of ``make_video``. The container follows from the file's suffix."""

    num_frames: int = 30
    size: tuple[int, int] = (64, 48)
    """(width, height) as stored, [pixels], even"""
    fps: Fraction | int = 25
    codec: str = "libx264"
    """An encoder's name: libx264, mpeg4, mpeg2video, libx265, libvpx-vp9, ffv1 ..."""
    pixel_format: str = "yuv420p"
    """Other formats are converted to from ``planes`` by swscale"""
    gop: int = 12
    """Frames from one keyframe to the next"""
    options: Mapping[str, str] = field(default_factory=dict)
    """For the encoder, such as ``{"bf": "0", "crf": "10"}``"""
    container_options: Mapping[str, str] = field(default_factory=dict)
    """For the container, such as ``{"movflags": "frag_keyframe"}``"""
    rotation: int = 0
    """[degrees clockwise] that a player turns the stored picture"""
    sample_aspect_ratio: Fraction | None = None
    audio: bool = False
    """A 440 Hz tone at half of full scale, mono, 16 kHz, as long as the video"""
    pts_ticks: Sequence[int] | None = None
    """Presentation times in units of 1 / (1000 * fps) seconds, ascending; every 1000 by default"""
    planes: Callable[[int, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = make_planes
    """(number, width, height) -> Y, U, V of that frame"""

    @property
    def time_base(self) -> Fraction:
        """[seconds] of one tick."""
        return 1 / (1000 * Fraction(self.fps))

    @property
    def duration_seconds(self) -> Fraction:
        """[seconds] of ``num_frames`` at ``fps``."""
        return self.num_frames / Fraction(self.fps)


def _add_video(container: Any, spec: VideoSpec) -> Any:
    stream = container.add_stream(spec.codec, rate=spec.fps, options=dict(spec.options))
    stream.width, stream.height = spec.size
    stream.pix_fmt = spec.pixel_format
    stream.gop_size = spec.gop
    stream.time_base = stream.codec_context.time_base = (
        1 / Fraction(spec.fps) if spec.pts_ticks is None else spec.time_base
    )
    stream.codec_context.thread_count = 1
    if spec.sample_aspect_ratio:
        stream.sample_aspect_ratio = spec.sample_aspect_ratio
    if spec.rotation:
        stream.set_display_rotation(-spec.rotation)
    return stream


def _add_audio(container: Any, suffix: str) -> Any:
    codec = {".avi": "pcm_s16le", ".mkv": "pcm_s16le", ".webm": "libopus"}.get(suffix, "aac")
    return container.add_stream(codec, rate=16000, layout="mono")


def _frames(spec: VideoSpec) -> Generator[av.VideoFrame, None, None]:
    for number in range(spec.num_frames):
        planes = spec.planes(number, *spec.size)
        frame = av.VideoFrame.from_ndarray(np.concatenate([p.reshape(-1, spec.size[0]) for p in planes]), "yuv420p")
        if spec.pts_ticks is None:
            frame.pts, frame.time_base = number, 1 / Fraction(spec.fps)
        else:
            frame.pts, frame.time_base = spec.pts_ticks[number], spec.time_base
        yield frame if spec.pixel_format == "yuv420p" else frame.reformat(format=spec.pixel_format)


def _tone(spec: VideoSpec, rate: int = 16000) -> av.AudioFrame:
    times = np.arange(int(spec.duration_seconds * rate)) / rate
    samples = (0.5 * 32767 * np.sin(2 * np.pi * 440 * times)).astype(np.int16)
    frame = av.AudioFrame.from_ndarray(samples[None], "s16", "mono")
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    return frame


@contextmanager
def _scheduled_as_before() -> Iterator[None]:
    """SVT-AV1 makes a real-time process of root's, which the machine then belongs to, and all that it starts later."""
    policy = os.sched_getscheduler(0)
    yield
    os.sched_setscheduler(0, policy, os.sched_param(0))


def write_video(path: str | Path, **spec: Any) -> Path:
    """Write a small real video and return its path. The arguments are the fields of ``VideoSpec``."""
    wanted = VideoSpec(**spec)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with _scheduled_as_before(), av.open(os.fspath(path), "w", options=dict(wanted.container_options)) as container:
        video = _add_video(container, wanted)
        sound = _add_audio(container, Path(path).suffix) if wanted.audio else None
        for frame in _frames(wanted):
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if sound:
            container.mux(sound.encode(_tone(wanted)))
            container.mux(sound.encode(None))
    return Path(path)


@pytest.fixture(scope="session")
def make_video() -> Callable[..., Path]:
    """``make_video(path, num_frames=30, size=(64, 48), fps=25, ...)``: see ``VideoSpec`` for all the fields.

    What frame n shows is known: ``frame_planes(n, width, height)``.
    """
    return write_video


@pytest.fixture(scope="session")
def frame_planes() -> Callable[[int, int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """``frame_planes(number, width, height)``: what a made video shows at a frame, see ``make_planes``."""
    return make_planes


@pytest.fixture(scope="session")
def five_videos(tmp_path_factory: pytest.TempPathFactory, make_video: Callable[..., Path]) -> Path:
    """Folder of a cache of five videos of one size, with flow and sound, and labels for two. Do not write into it."""
    folder = tmp_path_factory.mktemp("five")
    for number in range(5):
        make_video(folder / f"{number}.mp4", num_frames=20 + number, size=(96, 64), audio=True)
    (folder / "index.csv").write_text("path,label\n" + "".join(f"{n}.mp4,{'run' if n < 2 else ''}\n" for n in range(5)))
    (folder / "config.yaml").write_text("features: {flow: {method: dis}, motion: null}\n")
    tiers = ("lmdb", "npz")
    summary = cc.build(folder / "index.csv", folder / "cache", tiers=tiers, config=folder / "config.yaml", jobs=HERE)
    assert summary.num_done == 5
    return folder / "cache"


# The command line


def run_chordcache(
    *args: str | os.PathLike[str],
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    with_progress: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``python -m chordcache`` as a user would, and return its exit code and what it printed.

    ``env`` is laid over the present environment. Lines of progress and the names of failures are left out of
    ``stderr``, unless ``with_progress``.
    """
    done = subprocess.run(
        [sys.executable, "-m", "chordcache", *map(os.fspath, args)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
    )
    if not with_progress:
        done.stderr = processes.without_progress(done.stderr)
    return done


def invoke_chordcache(
    *args: str | os.PathLike[str],
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    with_progress: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which takes a second less, or in its own one if it needs another environment.

    Its workers are processes in both cases. They get ``env``.
    """
    if env is not None and not _is_like_here(env):
        return run_chordcache(*args, cwd=cwd, env=env, with_progress=with_progress)
    with nullcontext() if cwd is None else chdir(cwd):
        done = CliRunner(env=env).invoke(cli, [os.fspath(argument) for argument in args], prog_name="chordcache")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    stdout, stderr = (text.decode("utf-8", "surrogateescape") for text in (done.stdout_bytes, done.stderr_bytes))
    shown = stderr if with_progress else processes.without_progress(stderr)
    return subprocess.CompletedProcess(args, done.exit_code, stdout, shown)


def _is_like_here(env: Mapping[str, str]) -> bool:
    """Return whether an environment only names folders of modules that this process has too."""
    return env.keys() == {"PYTHONPATH"} and set(env["PYTHONPATH"].split(os.pathsep)) <= set(sys.path)


@pytest.fixture(scope="session")
def run_cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_cli(*args, cwd=None, env=None, with_progress=False)``: in this process if ``env`` lets it."""
    return invoke_chordcache


@pytest.fixture(scope="session")
def run_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_process(*args, cwd=None, env=None, timeout=120, with_progress=False)``: a command in its own process."""
    return run_chordcache


# Workers


WITH_WORKERS = pool.run


def run_here(
    function: Callable[[Any], Any], tasks: Iterable[Any], *, jobs: int | Engine | None, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """``pool.run``, whose tasks run in this process."""
    engine_of(jobs)
    yield from WITH_WORKERS(function, tasks, jobs=HERE, **options)


@pytest.fixture(scope="module")
def inline() -> Iterator[None]:
    """Tasks run in this process, whatever number of jobs a file's tests ask for. A worker takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "run", run_here)
        yield


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in worker processes, for a test about these in a file that uses ``inline``."""
    monkeypatch.setattr(pool, "run", WITH_WORKERS)


# A disk of little room


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """A folder with little room; what limits this process's children there; what frees the room.

    A tmpfs of its own where this container lets us mount one, else a limit on the size of files.
    """
    folder = tmp_path / "disk"
    if small_disks.can_mount(small_disks.tmpfs):
        with small_disks.tmpfs(folder, "3m", may_be_open=True):
            yield folder, lambda: None, lambda: small_disks.enlarge(folder)
    else:
        folder.mkdir()
        yield folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)), lambda: None
