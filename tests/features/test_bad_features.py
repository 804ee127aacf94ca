"""Features and tiers under attack: kills, full disks, damage, hostile files, odd media, plug-ins, changes of mind."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import run_here
from helpers import processes
from helpers.cache_contents import READERS, artefact
from helpers.faulty_extractor import ENVIRONMENT, PLUG_IN
from helpers.ffmpeg import ffmpeg, ffprobe
from helpers.inline import HERE

import chordcache as cc
from chordcache.config.config import config_from_json
from chordcache.engine import pool
from chordcache.features import decode_pass

pytestmark = pytest.mark.timeout(240)

Cli = Callable[..., subprocess.CompletedProcess[str]]
Maker = Callable[..., Path]

TIERS = ("lmdb", "npz", "hdf5")
TIER_ARGS = ["--tier", "lmdb", "--tier", "npz", "--tier", "hdf5"]
FULL: dict[str, Any] = {
    "features": {"flow": {"method": "dis"}},
    "hdf5": {"features": ["frames", "flow", "motion", "mel"]},
}


def sound(cache: Path) -> list[Any]:
    """Collect the garbage, then all that ``verify --deep --source`` has to say."""
    cc.collect_garbage(cache)
    return cc.verify(cache, level="deep", source=True, jobs=HERE).damage


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in this process: a build takes a tenth of the time."""
    monkeypatch.setattr(pool, "run", run_here)


def test_a_video_of_more_frames_than_a_cache_holds(
    tmp_path: Path, make_video: Maker, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_pass, "MAX_FRAMES", 4)
    for number in (4, 5):
        make_video(tmp_path / f"videos/{number}.mp4", num_frames=number)
    index = cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=1)
    assert cc.build(index, tmp_path / "cache", features=["frames"], jobs=1).num_failed == 1
    (failure,) = processes.quarantine(tmp_path / "cache").values()
    assert (failure["path"], failure["cause"], failure["num_frames_ok"]) == ("5.mp4", "refused-size", 4)
    assert failure["message"].startswith("it has more than 4 frames; list segments of it")


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, make_video: Maker) -> Path:
    """videos/, index.json and cache/, every feature in every tier."""
    folder = tmp_path_factory.mktemp("whole")
    make_video(folder / "videos/sound.mp4", num_frames=20, audio=True)
    make_video(folder / "videos/silent.mp4", num_frames=12)
    make_video(folder / "videos/single.mp4", num_frames=1)
    cc.scan([folder / "videos"], output=folder / "index.json", jobs=HERE)
    cc.build(folder / "index.json", folder / "cache", tiers=TIERS, config=config_from_json(FULL), jobs=HERE)
    return folder


@pytest.fixture
def cache(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage; its sources are the original ones."""
    return Path(shutil.copytree(whole / "cache", tmp_path / "cache"))


# Odd media


def _tone(seconds: float, rate: int = 16000) -> list[str]:
    return ["-f", "lavfi", "-i", f"sine=frequency=440:sample_rate={rate}:duration={seconds}"]


PICTURE = ["-f", "lavfi", "-i", "testsrc=size=64x48:rate=25:duration=1"]
MUX = ["-c:v", "libx264", "-c:a", "pcm_s16le"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, make_video: Maker) -> Path:
    """A cache, every feature in NPZ and HDF5, of a second of picture with sound that does not fit it."""
    folder = tmp_path_factory.mktemp("odd")
    videos = folder / "videos"
    videos.mkdir()
    ffmpeg(*PICTURE, *_tone(0.01), *MUX, videos / "short.mkv")
    ffmpeg(*PICTURE, *_tone(0.3), *MUX, videos / "early_end.mkv")
    ffmpeg(*PICTURE, "-itsoffset", "0.5", *_tone(0.5), *MUX, videos / "late.mkv")
    ffmpeg(*PICTURE, *_tone(1, 8000), *MUX, videos / "8khz.mkv")
    ffmpeg(*PICTURE, *_tone(1), *MUX, "-ac", "6", videos / "surround.mkv")
    make_video(videos / "one.mkv", num_frames=1, audio=True)
    parts = [make_video(folder / f"{w}.ts", num_frames=8, size=(w, h)) for w, h in ((64, 48), (96, 64))]
    (videos / "grows.ts").write_bytes(b"".join(part.read_bytes() for part in parts))
    ffmpeg(*_tone(0.5), videos / "sound_only.mp4")
    cover = ["-f", "lavfi", "-i", "color=red:size=64x48:duration=0.1", "-map", "0", "-map", "1", "-frames:v", "1"]
    ffmpeg(*_tone(0.5), *cover, "-c:v", "png", "-disposition:v", "attached_pic", videos / "cover.mp4")
    cc.scan([videos], output=folder / "index.json", jobs=2)
    (folder / "full.yaml").write_text(yaml.dump(FULL))
    return folder


@pytest.fixture(scope="module")
def odd_cache(odd: Path, run_cli: Cli) -> Path:
    args = ["-o", "cache", "-j2", "-c", "full.yaml", "--tier", "npz", "--tier", "hdf5"]
    done = run_cli("build", odd / "index.json", *args, cwd=odd)
    assert (done.returncode, done.stderr) == (3, "")
    return odd / "cache"


def test_a_video_without_pictures_is_quarantined(odd_cache: Path) -> None:
    causes = {path: line["cause"] for path, line in processes.quarantine(odd_cache).items()}
    assert causes == {"sound_only.mp4": "no-video", "cover.mp4": "no-video"}


@pytest.mark.parametrize("tier", ["npz", "hdf5"])
@pytest.mark.parametrize(
    ("path", "num_frames", "heard"),
    [
        ("short.mkv", 25, (0.0, 0.01)),
        ("early_end.mkv", 25, (0.0, 0.3)),
        ("late.mkv", 25, (0.5, 1.0)),
        ("8khz.mkv", 25, (0.0, 1.0)),
        ("surround.mkv", 25, (0.0, 1.0)),
        ("one.mkv", 1, (0.0, 0.04)),
    ],
)
def test_sound_that_does_not_fit(
    odd_cache: Path, tier: str, path: str, num_frames: int, heard: tuple[float, float]
) -> None:
    """A row each 10 ms for all of the picture, loud where the tone is and silent where its window does not reach."""
    with cc.open_cache(odd_cache) as opened:
        (video,) = (video for video in opened if video.path == path)
        mel = opened.read(video, "mel", tier=tier)
        assert opened.read(video, "flow", tier=tier).shape == (num_frames - 1, 48, 64, 2)
    assert mel.shape == (80, num_frames * 4)
    times = np.arange(mel.shape[1]) * 0.01
    window = 0.0125 + 0.01  # half of it, and a row for where the clocks of picture and sound begin
    inside = (times > heard[0] + window) & (times < heard[1] - window)
    outside = (times < heard[0] - window) | (times > heard[1] + window)
    assert np.all(mel[:, outside] == -100)
    assert np.all(mel[:, inside].max(axis=0) > -20)
    assert mel.max() > -60


@pytest.mark.parametrize("tier", ["npz", "hdf5"])
def test_frames_whose_size_changes_midway(odd_cache: Path, tier: str) -> None:
    with cc.open_cache(odd_cache) as opened:
        (video,) = (video for video in opened if video.path == "grows.ts")
        assert "8 frames of another size scaled to the first one's" in video.sidecar.notes
        assert opened.read(video, "flow", tier=tier).shape == (15, 48, 64, 2)
        motion = opened.read(video, "motion", tier=tier)
        assert motion.shape == (16, 3, 4, 2)
        assert opened.read(video, "motion.types", tier=tier)[[0, 8]].tolist() == [b"I", b"I"]


REAL = (
    "low_rate_audio/bear_mpeg4asp_mp3.avi", "audio_mismatch/testvid_1022ms.mp4", "tiny_frames/unordered.mov",
    "tiny_frames/tiny_av1.mp4", "tiny_frames/hevc_white_frame.mp4", "vfr/var_fps_video.mp4",
    "rotation/video_rotation_90.mp4", "rotation/video_180.mov", "attached_pic/with-attached-pic.mp3",
    "multi_audio/bug516323.ogv", "audio_only/aac_lc_sr16k_br48k_6c_16b_libfdk_aac.m4a",
    "start_offset/bbb_800x640_768kbps_30fps_avc_2b_firstpts_10_sec.mp4",
)  # fmt: skip


@pytest.mark.slow
def test_real_odd_files(corpus: Path, tmp_path: Path, run_cli: Cli) -> None:
    """Every feature of each video has the right length, or is absent for a true reason."""
    for name in REAL:
        shutil.copy(corpus / "odd" / name, tmp_path)
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"{Path(name).name}\n" for name in REAL))
    (tmp_path / "full.yaml").write_text(yaml.dump(FULL))
    done = run_cli("build", "list.csv", "-j2", "-c", "full.yaml", *TIER_ARGS, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    causes = {path: line["cause"] for path, line in processes.quarantine(tmp_path / "cache").items()}
    without_picture = ("aac_lc_sr16k_br48k_6c_16b_libfdk_aac.m4a", "with-attached-pic.mp3")
    assert causes == dict.fromkeys(without_picture, "no-video")
    for path, data in processes.sidecars(tmp_path / "cache").items():
        infos = {(info["tier"], info["feature"]): info for info in data["features"]}
        lengths = {name: info["shape"][0] for (_, name), info in infos.items() if "file" in info}
        absent = {name: info["absent"] for (_, name), info in infos.items() if "file" not in info}
        num_frames = data["num_frames"]
        assert lengths["frames"] == num_frames
        assert lengths["flow"] == num_frames - 1
        codec, has_sound = _streams(tmp_path / path)
        assert ("mel" in absent) == (not has_sound), path
        assert lengths.get("motion", num_frames) == num_frames
        assert ("motion" in absent) == (codec not in ("h264", "mpeg4")), path
    assert cc.verify(tmp_path / "cache", level="deep", source=True, jobs=2).damage == []


def _streams(path: Path) -> tuple[str, bool]:
    """Codec of the video, and whether there is sound, by ffprobe."""
    streams = ffprobe(path, "stream=codec_type,codec_name")["streams"]
    codecs = [stream["codec_name"] for stream in streams if stream["codec_type"] == "video"]
    return codecs[0], any(stream["codec_type"] == "audio" for stream in streams)


# Changes of mind


def build(whole: Path, cache: Path, tiers: Sequence[str], config: Mapping[str, Any] = FULL) -> None:
    summary = cc.build(whole / "index.json", cache, tiers=tiers, config=config_from_json(config))
    assert summary.num_failed == 0


@pytest.mark.usefixtures("inline")
def test_repair_does_not_build_removed_features(whole: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build(whole, cache, TIERS)
    build(whole, cache, ["lmdb"], {**FULL, "hdf5": {"features": ["frames"]}})
    processes.flip(artefact(cache, "sound.mp4", "hdf5"), 5000)
    assert cc.repair(cache, cc.verify(cache).damage, jobs=1).num_done == 1
    assert sound(cache) == []
    build(whole, cache, ["lmdb"], {**FULL, "hdf5": {"features": []}})
    processes.flip(artefact(cache, "sound.mp4", "lmdb"), 5000)
    assert cc.repair(cache, cc.verify(cache).damage, jobs=1).num_done == 1


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("tier", ["npz", "hdf5"])
def test_damage_in_one_tier_does_not_change_another(whole: Path, cache: Path, tier: str) -> None:
    before = processes.files_of(cache)
    features = processes.sidecars(cache)["sound.mp4"]["features"]
    (file,) = {
        feature["file"]["name"] for feature in features if (feature["tier"], feature["feature"]) == (tier, "mel")
    }
    path = cache / file
    row = dict(READERS[tier](path))["mel"][5].tobytes()
    processes.flip(path, path.read_bytes().index(row) + 3)
    config = {**FULL, "features": {"flow": {"method": "dis"}, "mel": {"n_mels": 40}}}
    build(whole, cache, [tier], config)
    others = [name for name in before if name.startswith(tuple({"lmdb/", "npz/", "hdf5/"} - {f"{tier}/"}))]
    after = processes.files_of(cache)
    assert {name: after[name] for name in others} == {name: before[name] for name in others}
    assert {info["tier"] for info in processes.sidecars(cache)["sound.mp4"]["features"]} == set(TIERS)
    assert {finding.kind for finding in cc.verify(cache, level="deep").damage} <= {"stale", "orphan"}
    build(whole, cache, TIERS, config)
    assert sound(cache) == []


# Reading


@pytest.mark.parametrize("tier", ["lmdb", "npz", "hdf5"])
def test_reads_are_slices_of_the_whole(whole: Path, tier: str) -> None:
    random = np.random.default_rng(3)
    with cc.open_cache(whole / "cache") as opened:
        (video,) = (video for video in opened if video.path == "sound.mp4")
        names = ["frames"] if tier == "lmdb" else ["flow", "motion", "motion.covered", "motion.types"]
        for name in names:
            full = opened.read(video, name, tier=tier)
            for _ in range(60):
                start, stop = (None if random.random() < 0.2 else int(n) for n in random.integers(-30, 40, 2))
                rows = opened.read(video, name, start, stop, tier=tier)
                np.testing.assert_array_equal(rows, full[_span(start, stop)])
                chosen = random.integers(len(full), size=random.integers(6)).astype(random.choice(["u1", "i8"]))
                out = np.empty((len(chosen), *full.shape[1:]), full.dtype)
                assert opened.read(video, name, indices=chosen, out=out, tier=tier) is out
                np.testing.assert_array_equal(out, full[chosen])


def _span(start: int | None, stop: int | None) -> slice:
    """Frame numbers as slices have them, of 20 frames: flow has a row less, and -1 is the last frame all the same."""
    span = range(20)[start:stop]
    return slice(span.start, max(span.start, span.stop))


@pytest.mark.parametrize(
    "indices", [[1.7], [True, False], [[1, 2]], 3, "12", [2**70], [None], np.zeros(20, bool), np.zeros((0, 2), int)]
)
@pytest.mark.parametrize("feature", ["frames", "flow"])
def test_indices_that_are_not_frame_numbers(whole: Path, feature: str, indices: Any) -> None:
    with (
        cc.open_cache(whole / "cache") as opened,
        pytest.raises(cc.UsageError, match="indices: got .*, expected a list of frame numbers"),
    ):
        opened.read(_key(opened), feature, indices=indices)


def _key(opened: cc.Cache) -> str:
    (key,) = (video.key for video in opened if video.path == "sound.mp4")
    return key


@pytest.mark.parametrize(
    ("feature", "tier"), [("frames", "lmdb"), ("frames", "hdf5"), ("flow", "npz"), ("flow", "hdf5")]
)
def test_an_out_that_cannot_be_written_is_not_damage(whole: Path, feature: str, tier: str) -> None:
    with cc.open_cache(whole / "cache") as opened:
        out = opened.read(_key(opened), feature, 0, 4, tier=tier)
        expected = out.copy()
        out.setflags(write=False)
        with pytest.raises(cc.UsageError, match="that can be written to"):
            opened.read(_key(opened), feature, 5, 9, out=out, tier=tier)
        np.testing.assert_array_equal(out, expected)


def test_names_that_are_not_features(whole: Path) -> None:
    with cc.open_cache(whole / "cache") as opened:
        for name in ("", ".", "frames.", "pts_seconds", "flow.xxh3_64", "motion.nothing", "../flow"):
            with pytest.raises(cc.NotFoundError, match="is not cached"):
                opened.read(_key(opened), name)
        with pytest.raises(cc.NotFoundError, match="is not cached in tier 'tape'"):
            opened.read(_key(opened), "frames", tier="tape")


# Plug-ins


def build_plug_in(
    whole: Path, folder: Path, run_cli: Cli, extractor: str, *options: str, **params: Any
) -> subprocess.CompletedProcess[str]:
    """Build the feature "mine" alone, in NPZ and HDF5."""
    mine = {"extractor": extractor, **params}
    config = {"features": {"mine": mine}, "hdf5": {"features": ["mine"]}}
    (folder / "mine.yaml").write_text(yaml.dump(config))
    return run_cli(
        "build", whole / "index.json", "-o", folder / "cache", "-c", folder / "mine.yaml", "-j2",
        "--tier", "npz", "--tier", "hdf5", "--features", "mine", *options,
        env=ENVIRONMENT,
    )  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [
        "views of one buffer",
        "on finish only",
        "no rows in between",
        "every other column",
        "Fortran order",
        "big-endian",
        "bool",
        "float64",
    ],
)
@pytest.mark.usefixtures("inline")
def test_rows_of_every_kind(whole: Path, tmp_path: Path, run_cli: Cli, how: str) -> None:
    done = build_plug_in(whole, tmp_path, run_cli, "helpers.plug_in_rows:RowsOfAKind", how=how)
    assert done.returncode == 0, done.stderr
    expected = np.arange(20)[:, None] + np.arange(6.0)
    if how == "Fortran order":
        expected = np.stack([expected, expected + 1], 2)
    expected = expected.astype({"views of one buffer": "f4", "big-endian": "f4", "bool": "?"}.get(how, "f8"))
    with cc.open_cache(tmp_path / "cache") as opened:
        for tier in ("npz", "hdf5"):
            rows = opened.read(_key(opened), "mine", tier=tier)
            assert rows.dtype == expected.dtype
            np.testing.assert_array_equal(rows, expected)
            assert opened[_key(opened)].feature("mine", tier).dtype == expected.dtype
    assert cc.verify(tmp_path / "cache", level="deep", jobs=HERE).damage == []


@pytest.mark.parametrize("how", ["changes the picture", "changes the luma", "changes the planes"])
@pytest.mark.usefixtures("inline")
def test_an_extractor_cannot_change_what_others_get(whole: Path, tmp_path: Path, run_cli: Cli, how: str) -> None:
    done = build_plug_in(whole, tmp_path, run_cli, "helpers.plug_in_rows:RowsOfAKind", how=how)
    assert done.returncode == 3, done.stderr
    causes = {(line["stage"], line["cause"]) for line in processes.quarantine(tmp_path / "cache").values()}
    assert causes == {("mine", "extractor")}
    assert "read-only" in next(iter(processes.quarantine(tmp_path / "cache").values()))["message"]


@pytest.mark.slow
def test_a_million_rows_at_once(tmp_path: Path, make_video: Maker, run_cli: Cli) -> None:
    make_video(tmp_path / "videos/sound.mp4", num_frames=12)
    cc.scan([tmp_path / "videos"], output=tmp_path / "index.json", jobs=HERE)
    assert build_plug_in(tmp_path, tmp_path, run_cli, "helpers.plug_in_rows:Million").returncode == 0
    with cc.open_cache(tmp_path / "cache") as opened:
        for tier in ("npz", "hdf5"):
            rows = opened.read(_key(opened), "mine", 5, 10, tier=tier)
            np.testing.assert_array_equal(rows[:, 0], np.arange(200_000, 400_000))


def test_output_of_a_plug_in_goes_to_standard_error(whole: Path, tmp_path: Path, run_process: Cli) -> None:
    done = build_plug_in(whole, tmp_path, run_process, "helpers.plug_in_rows:RowsOfAKind", "--json", how="prints")
    assert json.loads(done.stdout)["num_done"] == 3
    hello = "hello from a plug-in"
    # Unbuffered, two workers may write their lines in between each other's line and its end
    assert hello in done.stderr
    assert not done.stderr.replace(hello, "").strip()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("None", "extractor returned a NoneType, expected a mapping of names to rows"),
        ("array", "extractor returned a ndarray, expected a mapping of names to rows"),
        ("UsageError", "chordcache.errors.UsageError: a plug-in must not raise this"),
        ("ValueError", "ValueError: no such thing"),
        ("sys.exit", "SystemExit: 0"),
        ("one row less", "'mine' has 11 rows, expected 12 for 12 frames"),
        ("other name", "extractor returned 'else', expected a name that begins with 'mine.'"),
        ("objects", "'mine'"),
        ("other shapes", "'mine'"),
        ("facts", "TypeError: Object of type float32 is not JSON serializable"),
        (
            "clock",
            "num_rows() returned None, and facts do not fit: expected the numbers row_seconds, start_seconds, silence, "
            "and row_seconds above 0",
        ),
    ],
)
@pytest.mark.usefixtures("inline")
def test_every_video_of_a_faulty_extractor_is_quarantined(
    whole: Path, tmp_path: Path, run_cli: Cli, fault: str, message: str
) -> None:
    done = build_plug_in(whole, tmp_path, run_cli, PLUG_IN, fault=fault, at_frame=0)
    assert (done.returncode, done.stderr) == (3, "")
    failed = processes.quarantine(tmp_path / "cache")
    assert {(line["stage"], line["cause"]) for line in failed.values()} == {("mine", "extractor")}
    assert message in failed["silent.mp4"]["message"]
    assert len(failed) == (2 if fault in ("one row less", "other shapes") else 3)  # one frame has one shape
    again = build_plug_in(whole, tmp_path, run_cli, PLUG_IN, fault=fault, at_frame=0)
    assert "not tried again 3" in again.stdout or len(failed) == 2
