"""Media made to harm: files that name other files and addresses, and files that claim more than they hold."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from conftest import write_video
from helpers.ffmpeg import ffmpeg

# MP4 boxes


def box(kind: bytes, *parts: bytes) -> bytes:
    """A box of ISO/IEC 14496-12 and what is in it."""
    body = b"".join(parts)
    return struct.pack(">I", 8 + len(body)) + kind + body


def full_box(kind: bytes, *parts: bytes) -> bytes:
    """A box with version 0 and no flags."""
    return box(kind, bytes(4), *parts)


_MATRIX = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)


def track(tables: bytes, codec: bytes = b"mjpg") -> bytes:
    """A video track of 100 ms that claims 64 x 48 pixels and whose sample tables are the caller's."""
    entry = box(codec, bytes(6), b"\0\1", bytes(16), struct.pack(">2H", 64, 48), bytes(50))
    tkhd = full_box(b"tkhd", struct.pack(">5I", 0, 0, 1, 0, 100), bytes(16), _MATRIX, struct.pack(">2I", 64, 48))
    mdhd = full_box(b"mdhd", struct.pack(">4I", 0, 0, 1000, 100), bytes(4))
    hdlr = full_box(b"hdlr", bytes(4), b"vide", bytes(13))
    dinf = box(b"dinf", full_box(b"dref", struct.pack(">I", 1), box(b"url ", b"\0\0\0\1")))
    stbl = box(b"stbl", full_box(b"stsd", struct.pack(">I", 1), entry), tables)
    minf = box(b"minf", full_box(b"vmhd", bytes(8)), dinf, stbl)
    return box(b"trak", tkhd, box(b"mdia", mdhd, hdlr, minf))


def movie(*tracks: bytes, more: bytes = b"", media: bytes = bytes(64)) -> bytes:
    """An MP4 of these tracks, whose samples are at byte 28."""
    mvhd = full_box(b"mvhd", struct.pack(">4I", 0, 0, 1000, 100), struct.pack(">IH", 1 << 16, 256), bytes(10), _MATRIX,
                    bytes(24), struct.pack(">I", 2))  # fmt: skip
    return box(b"ftyp", b"isom\0\0\2\0isom") + box(b"mdat", media) + box(b"moov", mvhd, *tracks, more)


def tables(*, num_samples: int = 1, stts: bytes = b"", ctts: bytes = b"", size: int = 1) -> bytes:
    """Sample tables that claim samples of one size, all in one chunk at byte 28."""
    stts = stts or struct.pack(">3I", 1, num_samples, 1)
    return (
        full_box(b"stts", stts)
        + (full_box(b"ctts", ctts) if ctts else b"")
        + full_box(b"stsc", struct.pack(">4I", 1, 1, num_samples, 1))
        + full_box(b"stsz", struct.pack(">2I", size, num_samples))
        + full_box(b"stco", struct.pack(">2I", 1, 28))
    )


def grown(data: bytes, path: tuple[bytes, ...], old: bytes, new: bytes) -> bytes:
    """An MP4 in which a box deep inside is another one, and the boxes around it are as large as they are then."""
    changed, start = bytearray(data), 0
    for kind in path:
        start = data.index(kind, start) - 4
        (size,) = struct.unpack_from(">I", data, start)
        struct.pack_into(">I", changed, start, size + len(new) - len(old))
        start += 8
    at = data.index(old, start)
    return bytes(changed[:at]) + new + bytes(changed[at + len(old) :])


# S1: what names other files and addresses


def _alias(path: str) -> bytes:
    """A data reference of QuickTime's kind to an absolute path."""
    name = path.encode()
    folders = struct.pack(">2H", 1, 1)
    body = bytes(10) + b"\5dummy" + bytes(22) + bytes(12) + b"\6secret" + bytes(57) + bytes(16) + folders + bytes(16)
    padded = name + b"\0" * (len(name) % 2)
    body += struct.pack(">2H", 2, len(name)) + padded + struct.pack(">2H", 18, 1) + b"/\0" + b"\xff\xff\0\0"
    return box(b"alis", bytes(4), body.ljust(170, b"\0"))


def _referring(seed: bytes, reference: bytes) -> bytes:
    """A good MP4 whose samples are said to be elsewhere."""
    old = box(b"url ", b"\0\0\0\1")
    return grown(seed, (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"), old, reference)


def _linked(folder: Path, seed: Path) -> bytes:
    """A Matroska segment that says which file comes next: NextFilename in the place of a title as long."""
    titled = folder / "titled.mkv"
    ffmpeg("-i", seed, "-c", "copy", "-metadata", f"title={'x' * 30}", titled)
    title = b"\x7b\xa9" + bytes([0x80 + 30]) + b"x" * 30
    data = titled.read_bytes()
    assert title in data
    return data.replace(title, b"\x3e\x83\xbb" + bytes([0x80 + 29]) + b"../elsewhere/secret.mkv".ljust(29, b"\0"))


def naming_others(corpus: Path, secrets: Path, address: str) -> list[str]:
    """Fill a folder with media that name those in ``secrets`` and an address of this host; return their names.

    ``secrets`` gets what they name. Some are valid videos except for their name or for what they refer to.
    """
    corpus.mkdir()
    secrets.mkdir()
    seed = write_video(secrets / "secret.mp4", num_frames=5)
    for name in ("secret.mkv", "secret.sub", "secret.ts", "001.mp4", "x.mp4"):
        ffmpeg("-i", seed, "-c", "copy", "-f", "mpegts" if name.endswith(("ts", "sub")) else "mp4", secrets / name)
    good, url = seed.read_bytes(), f"http://{address}/asked.ts"
    hls = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{}\n#EXT-X-ENDLIST\n"
    sdp = (
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
        "a=rtpmap:96 H264/90000\n"
    )
    dash = (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet '
        "mimeType='video/mp4'><Representation id='1'><BaseURL>{}</BaseURL></Representation></AdaptationSet></Period>"
        "</MPD>"
    )
    texts = {
        "hls.mp4": hls.format(secrets / "secret.ts"),
        "hls_web.mp4": hls.format(url),
        "hls_relative.ts": hls.format("../elsewhere/secret.ts"),
        "hls_itself.mp4": hls.format("hls_itself.mp4"),
        "hls_key.mp4": hls.replace("#EXTINF", f'#EXT-X-KEY:METHOD=AES-128,URI="{url}"\n#EXTINF').format("x.ts"),
        "hls_master.mkv": f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{url}\n",
        "concat.mp4": f"ffconcat version 1.0\nfile '{secrets / 'secret.mp4'}'\n",
        "concat_web.mp4": f"ffconcat version 1.0\nfile '{url}'\n",
        "concat_itself.mp4": "ffconcat version 1.0\nfile 'concat_itself.mp4'\n",
        "chain.mp4": "ffconcat version 1.0\nfile 'hls_web.mp4'\nfile 'hls.mp4'\n",
        "dash.mp4": dash.format(secrets / "secret.mp4"),
        "dash_web.mp4": dash.format(url),
        "sdp.mp4": sdp,
        "rtsp.mp4": f"rtsptext\nrtsp://{address}/x\n",
        "asx.asf": f'<asx version="3"><entry><ref href="{url}"/></entry></asx>',
        "ref.asf": f"[Reference]\nRef1={url}\n",
        "vobsub.mp4": "# VobSub index file, v7 (do not modify this line!)\nid: en, index: 0\n"
        "timestamp: 00:00:01:000, filepos: 000000000\n",
        "aviscript.avi": f"AviSource('{secrets / 'secret.mp4'}')\n",
        "movietext.mov": f"RTSPtext\nhttp://{address}/x.mov\n",
        "smil.rm": f"<smil><body><video src='{url}'/></body></smil>",
        "ram.rm": f"{url}\n",
        "imf.mxf": f"<AssetMap><Path>{secrets / 'secret.mp4'}</Path></AssetMap>",
        "subject.mp4": f"file '{secrets / 'secret.mp4'}'\n",
    }
    ref = box(b"rdrf", bytes(4), b"url ", struct.pack(">I", len(url) + 1), url.encode() + b"\0")
    binary = {
        "alias.mov": _referring(good, _alias(str(secrets / "secret.mp4"))),
        "url.mp4": _referring(good, box(b"url ", bytes(4), url.encode() + b"\0")),
        "url_file.mp4": _referring(good, box(b"url ", bytes(4), f"file://{secrets}/secret.mp4\0".encode())),
        "rmra.mov": box(b"ftyp", b"qt  \0\0\2\0qt  ") + box(b"moov", box(b"rmra", box(b"rmda", ref))),
        "linked.mkv": _linked(secrets, seed),
        "vobsub.sub.mp4": b"\0\0\1\xba" + bytes(2048),
        "http:x.mp4": good,
        f"http:__{address.replace(':', '_')}.mp4": good,
        "concat:001.mp4|x.mp4": good,
        "-i.mp4": good,
        "%03d.mp4": good,
        "frame[0-9].mp4": good,
        "file:x.mp4": good,
        "pipe:0.mp4": good,
        "data:,x.mp4": good,
    }
    for name, text in texts.items():
        (corpus / name).write_text(text)
    for name, data in binary.items():
        (corpus / name).write_bytes(data)
    return [*texts, *binary]


# S2: what claims more than it holds


def _jpeg_claim(width: int, height: int) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        seed = write_video(path.with_name("seed.avi"), num_frames=3, codec="mjpeg", pixel_format="yuvj420p")
        ffmpeg("-i", seed, "-c", "copy", path)
        seed.unlink()
        size = struct.pack(">2H", 48, 64)
        path.write_bytes(path.read_bytes().replace(b"\x08" + size, b"\x08" + struct.pack(">2H", height, width)))

    return make


def _png(width: int, height: int, channels: int, depth: int) -> bytes:
    """A picture of zeros, whole, a thousandth of its size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    kinds = {1: 0, 3: 2, 4: 6}
    packer = zlib.compressobj(1)
    row = bytes(1 + width * channels * depth // 8)
    data = b"".join([packer.compress(row * 64) for _ in range(height // 64)]) + packer.flush()
    head = struct.pack(">2I5B", width, height, depth, kinds[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _png_movie(width: int, height: int, channels: int, depth: int) -> bytes:
    media = _png(width, height, channels, depth)
    return movie(track(tables(size=len(media)), b"png "), media=media)


def _written(data: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data())


def _many_fragments() -> bytes:
    """One trun that claims 60 million samples, each with the size that tfhd gives to all."""
    trex = full_box(b"trex", struct.pack(">5I", 1, 1, 1, 1, 0))
    tfhd = box(b"tfhd", b"\0\2\0\x18", struct.pack(">3I", 1, 1, 1))
    trun = box(b"trun", b"\0\0\0\1", struct.pack(">2I", 60_000_000, 100))
    moof = box(b"moof", full_box(b"mfhd", struct.pack(">I", 1)), box(b"traf", tfhd, trun))
    head = movie(track(tables(num_samples=0)), more=box(b"mvex", trex))
    return head + moof + box(b"mdat", bytes(64))


def _many_pids() -> bytes:
    """A transport stream with a thousand programs of eight tracks, as PAT and PMTs say, and no packet of them."""

    def section(pid: int, table: int, number: int, body: bytes) -> bytes:
        data = struct.pack(">BHHBBB", table, 0xB000 | (len(body) + 9), number, 0xC1, 0, 0) + body
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= byte << 24
            for _ in range(8):
                crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
        packed = b"\0" + data + struct.pack(">I", crc)
        return struct.pack(">BHB", 0x47, 0x4000 | pid, 0x10) + packed.ljust(184, b"\xff")

    packets = []
    for program in range(1, 1000):
        packets.append(section(0, 0, 1, struct.pack(">2H", program, 0xE000 | (16 + program))))
        streams = b"".join(
            struct.pack(">BHH", 0x1B, 0xE000 | (1100 + program * 7 + i) % 8190, 0xF000) for i in range(8)
        )
        packets.append(section(16 + program, 2, program, struct.pack(">2H", 0xE100, 0xF000) + streams))
    return b"".join(packets) * 3


def ebml(identity: str, *parts: bytes, size: int | None = None) -> bytes:
    """An EBML element with an eight-byte length, its own or a lie."""
    body = b"".join(parts)
    length = (1 << 56) | (len(body) if size is None else size)
    return bytes.fromhex(identity) + length.to_bytes(8, "big") + body


def matroska(*parts: bytes) -> bytes:
    """A segment with these elements."""
    head = ebml("1a45dfa3", ebml("4282", b"matroska"), ebml("4287", b"\4"), ebml("4285", b"\2"))
    info = ebml("1549a966", ebml("2ad7b1", (1000000).to_bytes(4, "big")))
    return head + ebml("18538067", info, *parts)


def _mkv_track(number: int, *more: bytes) -> bytes:
    picture = ebml("e0", ebml("b0", b"\0\x40"), ebml("ba", b"\0\x30"))
    at = number.to_bytes(3, "big")
    return ebml("ae", ebml("d7", at), ebml("73c5", at), ebml("83", b"\1"), ebml("86", b"V_MJPEG"), picture, *more)


def _lying_mkv(num_bytes: int) -> bytes:
    """A track whose codec's header claims to be that long."""
    return matroska(ebml("1654ae6b", _mkv_track(1, ebml("63a2", b"x", size=num_bytes))))


def _nested_ebml() -> bytes:
    """Ten thousand tags, each in another."""
    data = b""
    for _ in range(10_000):
        data = ebml("67c8", data)
    return matroska(ebml("1254c367", ebml("7373", data)))


def _nested_boxes() -> bytes:
    data = b""
    for _ in range(10_000):
        data = box(b"udta", data)
    return movie(track(tables()), more=data)


def _wav(num_channels: int) -> bytes:
    head = struct.pack("<HHIIHH", 1, num_channels, 48000, 0xFFFFFFFF, 2 * num_channels & 0xFFFF, 16)
    return b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<I", 16) + head + b"data\xff\xff\xff\xff" + bytes(1 << 17)


def _avi_strf(path: Path) -> None:
    write_video(path, num_frames=3, codec="mjpeg", pixel_format="yuvj420p")
    data = bytearray(path.read_bytes())
    at = data.index(b"strf") + 4
    data[at : at + 4] = struct.pack("<I", 0x7FFFFFF0)
    path.write_bytes(data)


def _loud(path: Path) -> None:
    """A good picture, and sound that claims 65,535 channels."""
    seed = write_video(path.with_name("seed.mp4"), num_frames=5, audio=True)
    ffmpeg("-i", seed, "-c:v", "copy", "-c:a", "pcm_s16le", path)
    seed.unlink()
    data = bytearray(path.read_bytes())
    at = data.index(b"sowt") + 4 + 16
    data[at : at + 2] = b"\xff\xff"
    path.write_bytes(data)


def _long(path: Path) -> None:
    """Five frames, the last of them after thirty years."""
    write_video(path, num_frames=5, pts_ticks=(0, 1000, 2000, 3000, 25_000 * 10**9))


def _black(path: Path) -> None:
    ffmpeg("-f", "lavfi", "-i", "color=black:size=16384x8192:rate=25", "-frames:v", "1", "-c:v", "libx264", "-preset",
           "ultrafast", "-x264-params", "threads=1:ref=1:lookahead-threads=1", path)  # fmt: skip


SOUND = {"png_limit.mov": 1, "black.mp4": 1, "strf.avi": 3, "channels.mov": 5, "long.mkv": 5}
"""Those of them that may be cached for all they claim, and how many frames they show."""

CLAIMS: dict[str, Callable[[Path], object]] = {
    "jpeg_16k.avi": _jpeg_claim(16384, 16384),
    "jpeg_64k.mov": _jpeg_claim(65500, 65500),
    "jpeg_limit.avi": _jpeg_claim(16384, 8192),
    "png_16k.mov": _written(lambda: _png_movie(16384, 16384, 1, 8)),
    "png_limit.mov": _written(lambda: _png_movie(16384, 8192, 4, 16)),
    "black.mp4": _black,
    "stsz.mp4": _written(lambda: movie(track(tables(num_samples=60_000_000)))),
    "stsz_max.mp4": _written(lambda: movie(track(tables(num_samples=0xFFFFFFFF, size=0)))),
    "stts.mp4": _written(lambda: movie(track(tables(num_samples=9, stts=struct.pack(">3I", 1, 0xFFFFFFFF, 1))))),
    "stts_entries.mp4": _written(lambda: movie(track(tables(num_samples=9, stts=struct.pack(">3I", 1 << 28, 9, 1))))),
    "ctts.mp4": _written(lambda: movie(track(tables(num_samples=9, ctts=struct.pack(">3I", 1, 0xFFFFFFFF, 1))))),
    "ctts_entries.mp4": _written(lambda: movie(track(tables(num_samples=9, ctts=struct.pack(">3I", 1 << 28, 9, 1))))),
    "trun.mp4": _written(_many_fragments),
    "tracks.mp4": _written(lambda: movie(*[track(tables())] * 10_000)),
    "tracks.mkv": _written(lambda: matroska(ebml("1654ae6b", *(_mkv_track(n) for n in range(1, 10_001))))),
    "tracks.ts": _written(_many_pids),
    "nested.mp4": _written(_nested_boxes),
    "nested.mkv": _written(_nested_ebml),
    "length.mkv": _written(lambda: _lying_mkv((1 << 56) - 2)),
    "length_2g.mkv": _written(lambda: _lying_mkv((1 << 31) - 99)),
    "strf.avi": _avi_strf,
    "channels.mp4": _written(lambda: _wav(0xFFFF)),
    "channels.mov": _loud,
    "long.mkv": _long,
}
"""Name to what writes it."""
