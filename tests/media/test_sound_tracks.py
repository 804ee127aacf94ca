"""Files with several audio tracks: one that can be decoded is taken, and absent sound says why."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from helpers.ffmpeg import ffmpeg

from chordcache.errors import NotFoundError
from chordcache.look.summary import summarize
from chordcache.media.audio import read_sound, sample_rate_of
from chordcache.media.decoding import decode_frames
from chordcache.media.demux import open_media

FILM = ("-f", "lavfi", "-i", "testsrc2=s=64x48:r=25:d=1")
LOW, HIGH = (("-f", "lavfi", "-i", f"sine=f={hertz}:r=32000:d=1") for hertz in (300, 900))
IDS = {"mp4": b"alac", "mov": b"alac", "mkv": b"A_ALAC"}
"""Name of the codec of the track that becomes unknown, in each container"""


def write(path: Path, *codecs: str) -> Path:
    """Write a film with a track of sound for each codec, and make ALAC a codec that no decoder is known for."""
    path.parent.mkdir(exist_ok=True)
    maps = [option for number in range(1, len(codecs) + 1) for option in ("-map", str(number))]
    options = [option for number, codec in enumerate(codecs) for option in (f"-c:a:{number}", codec)]
    marks = [("0", "default")[codec == "alac"] for codec in codecs]  # so that FFmpeg calls it the best track
    flags = [option for number, mark in enumerate(marks) for option in (f"-disposition:a:{number}", mark)]
    ffmpeg(*FILM, *LOW, *HIGH, "-map", "0", *maps, "-c:v", "mpeg4", *options, *flags, path)
    name = IDS[path.suffix[1:]]
    data = path.read_bytes()
    if path.suffix == ".mkv":
        path.write_bytes(data.replace(name, b"A_XLAC"))
    else:  # the sample description, not the box inside of it
        at = data.index(name, data.index(b"stsd", data.index(b"soun") if codecs[0] == "alac" else data.rindex(b"soun")))
        path.write_bytes(data[:at] + b"xlac" + data[at + 4 :])
    return path


@pytest.mark.parametrize("suffix", ["mov", "mkv"])  # ffmpeg writes no PCM into MP4
@pytest.mark.parametrize("codecs", [("alac", "pcm_s16le"), ("pcm_s16le", "alac")])
def test_the_track_that_can_be_decoded_is_taken(suffix, codecs, tmp_path):
    path = write(tmp_path / f"two.{suffix}", *codecs)
    number = codecs.index("pcm_s16le")
    ffmpeg("-i", path, "-map", f"0:a:{number}", "-c", "copy", alone := tmp_path / "alone.wav")
    assert sample_rate_of(str(path)) == 32_000
    sound = read_sound(str(path), 0, 1)
    assert np.array_equal(sound, read_sound(str(alone), 0, 1))
    assert np.argmax(abs(np.fft.rfft(sound[:, 0]))) == (300, 900)[number]


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "xlac"), ("mov", "xlac"), ("mkv", "unknown codec")])
def test_absent_sound_names_the_codec(suffix, codec, tmp_path, run_cli):
    path = write(tmp_path / "in" / f"one.{suffix}", "alac")
    why = f"no audio track that FFmpeg can decode ({codec})"
    with pytest.raises(NotFoundError) as raised:
        read_sound(str(path), 0, 1)
    assert str(raised.value) == f"the file has {why}"
    run_cli("build", path.parent, "-o", tmp_path / "cache", "--features", "frames,mel,waveform")
    assert summarize(tmp_path / "cache")["absent"] == {f"mel in npz: {why}": 1, f"waveform in npz: {why}": 1}


def test_compressed_sound_of_quicktime_counts_no_samples_that_take_memory(tmp_path):
    """Its tables count the samples that it decodes to, which may be more than the file has bytes."""
    ffmpeg(*FILM, "-f", "lavfi", "-i", "sine=r=44100:d=20", "-c:v", "mpeg4", "-c:a", "adpcm_ima_qt", tmp_path / "a.mov")
    data = bytearray((tmp_path / "a.mov").read_bytes())
    table = data.rindex(b"stts")
    num_packets, samples_of_each = struct.unpack_from(">II", data, table + 12)
    num_samples = num_packets * samples_of_each
    struct.pack_into(">II", data, table + 12, num_samples, 1)
    struct.pack_into(">II", data, data.rindex(b"stsz") + 8, 1, num_samples)
    chunks = data.rindex(b"stsc")
    for run in range(struct.unpack_from(">I", data, chunks + 8)[0]):
        at = chunks + 12 + 12 * run + 4
        struct.pack_into(">I", data, at, samples_of_each * struct.unpack_from(">I", data, at)[0])
    assert num_samples > len(data)
    (tmp_path / "old.mov").write_bytes(data)
    with open_media(str(tmp_path / "old.mov")) as media:
        assert len(list(decode_frames(media))) == 25
    assert np.array_equal(*(read_sound(str(tmp_path / name), 0, 20) for name in ("a.mov", "old.mov")))
