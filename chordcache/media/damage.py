"""Damaged files: the frames that are right all the same, and a record of the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from av.video.frame import PictureType

from chordcache import progress
from chordcache.errors import MediaError
from chordcache.media.audio_track import Sound
from chordcache.media.checks.container_watch import FIRST_IS_CUT, MARK_DISTANCE
from chordcache.media.checks.faults import Faults
from chordcache.media.decoding import DecodedFrame, Decoding
from chordcache.media.timestamps import Clock
from chordcache.media.video_decoder import MARKED
from chordcache.records import DamagedFrames, DamageFacts

if TYPE_CHECKING:
    from chordcache.media.demux import Media

_CAUSES = ("decode", "truncated", "short")
"""Causes of a ``MediaError`` after which some frames of the file may be right"""

_MAX_STEP_ERROR = 0.25
"""Largest difference between two steps of a video with a constant rate, as a share of the step. Containers round."""


def may_keep(error: MediaError) -> bool:
    """Return whether some frames of a file may be right although decoding it ended with an error."""
    return error.stage == "decode" and error.cause in _CAUSES


@dataclass(frozen=True)
class KeptFrames:
    """The frames of a damaged file that are to be cached, and a record of the others."""

    shown: Mapping[int, tuple[int, float | None]]
    """Number of a sent packet to the number of its frame in the source, and the frame's time [seconds]. The time is
    None if the frame itself has it"""
    facts: DamageFacts


def survey(media: Media, on_damage: str) -> KeptFrames | None:
    """Decode a damaged file from start to end, and return the frames to keep. Return None if there are none.

    Parameters
    ----------
    media : Media
        The file, newly opened.
    on_damage : {"keep", "keep-concealed"}
        "keep" keeps the frames that are right, as far as the decoder and the container report damage. A frame is
        dropped if something is reported about its packet or the next one, and so are all later frames up to the next
        picture that refers to none before it. "keep-concealed" keeps every frame that the decoder shows.

    Raises
    ------
    MediaError
        If decoding stops before the end, or no frame comes out.
    """
    faults = _FaultLog()
    decoding = Decoding(media, faults)
    track = _Track(media, decoding)
    for packet in _flushed(media, faults, decoding, None):
        track.take(packet, faults)
    decoding.settle()
    track.finish(faults)
    return _selected(track, on_damage)


def kept_frames(media: Media, kept: KeptFrames, **options: Any) -> Iterator[DecodedFrame]:
    """Decode a damaged file as ``Media.frames``, and yield the frames to keep with their numbers in the source.

    ``options`` are those of ``Media.frames``.

    Raises
    ------
    MediaError
        ``changed`` if the file shows other frames than in ``survey``.
    """
    faults = Faults()
    decoding = Decoding(media, faults, motion_vectors=options.get("motion_vectors", False))
    num_left = len(kept.shown)
    for packet in _flushed(media, faults, decoding, options.get("on_sound")):
        for frame in decoding.frames(packet):
            progress.beat()
            chosen = kept.shown.get(decoding.last_packet)
            if chosen is not None:
                number, seconds = chosen
                yield replace(frame, number=number, pts_seconds=frame.pts_seconds if seconds is None else seconds)
                num_left -= 1
    decoding.settle()
    media.num_skipped = decoding.num_skipped
    if num_left:
        raise MediaError("decode", "changed", "the frames of a damaged file differ between two decodes")


def _flushed(
    media: Media, faults: Faults, decoding: Decoding, on_sound: Callable[[Sound], None] | None
) -> Iterator[Any]:
    """Yield the packets of the video track and an empty one, also if the file cannot be read to its end."""
    packet = None
    for packet in media.packets(faults, decoding.check, on_sound=on_sound):
        yield packet
    if packet is not None and packet.size:
        yield type(packet)()


class _FaultLog(Faults):
    """Faults with the cause and message of each."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[tuple[str, str]] = []
        """Faults that were not located yet"""

    def add(self, cause: str, what: str) -> None:
        """Note a fault."""
        super().add(cause, what)
        self.new.append((cause, what))

    def taken(self) -> list[tuple[str, str]]:
        """Return the new faults, and forget them."""
        new, self.new = self.new, []
        return new


@dataclass
class _Sent:
    """One packet that was sent to the decoder."""

    pts: int | None
    dts: int | None
    is_shown: bool
    is_entry: bool
    """True if its picture, and all that are shown after it, refer to no picture before it"""
    order: int | None = None
    """Place of its frame among all that came out; None if it did not come"""
    fault: tuple[str, str] | None = None
    """Cause and message of the first fault that concerns it"""
    is_wrong: bool = False
    """True if its picture may be wrong"""


class _Track:
    """The packets of a damaged track, with the frames that came of them, and their faults."""

    def __init__(self, media: Media, decoding: Decoding) -> None:
        self.media = media
        self.decoding = decoding
        self.sent: list[_Sent] = []
        self.first_number = 0
        """Number of the first frame, which is not 0 if those before it are damaged"""
        self.num_cut = 0
        """Number of frames after the last packet, according to the header"""
        self._num_out = 0
        self._num_shown = 0
        # Tables of an MP4 give the place of each packet. In other files, what is reported after a packet may concern
        # those before it
        self._reach = 0 if "mp4" in media.container.format.name else MARK_DISTANCE + 1

    def take(self, packet: Any, faults: _FaultLog) -> None:
        """Decode the next packet, and locate the faults that were found since the last one."""
        decoding, check = self.decoding, self.decoding.check
        of_container = faults.taken()
        out = [(decoding.last_packet, frame.picture) for frame in decoding.frames(packet)]
        at = decoding.num_sent - 1
        if decoding.num_sent > len(self.sent):
            is_shown, self._num_shown = check.num_shown > self._num_shown, check.num_shown
            is_entry = check.reader.is_entry(memoryview(packet))
            self.sent.append(_Sent(packet.pts, packet.dts, is_shown, is_entry or packet.is_keyframe))
        for number, picture in out:
            self._come(number, picture)
        for fault in of_container:
            self._mark(range(at - self._reach, at + 1), fault)
        for fault in faults.taken():
            if not check.has_started:
                self.first_number = check.num_skipped
            elif decoding.problem == MARKED:
                self._mark([number for number, picture in out if picture.is_corrupt], fault)
            elif decoding.problem or check.problem or not packet.size:
                self._mark([at - 1, at], fault)  # damage seldom begins where a packet does
            elif check.num_left_out:
                self._mark([at - self.sent[at].is_entry], fault)
            else:  # about the frames that came out
                self._mark([number for number, _ in out], fault)

    def _come(self, number: int, picture: Any) -> None:
        if not 0 <= number < len(self.sent) or self.sent[number].order is not None:
            return
        sent = self.sent[number]
        sent.order, self._num_out = self._num_out, self._num_out + 1
        if sent.is_entry and picture.pict_type not in (PictureType.I, PictureType.NONE):
            sent.is_entry = False

    def _mark(self, numbers: Sequence[int], fault: tuple[str, str]) -> None:
        for number in numbers:
            if 0 <= number < len(self.sent) and self.sent[number].fault is None:
                self.sent[number].fault = fault

    def finish(self, faults: _FaultLog) -> None:
        """Locate the faults that were found after the last packet, and find all frames that may be wrong."""
        num_sent = len(self.sent)
        for fault in faults.taken():
            first = 0 if fault[1] == FIRST_IS_CUT else num_sent - max(1, self._reach)
            self._mark(range(first, 1 if fault[1] == FIRST_IS_CUT else num_sent), fault)
        for number, _ in self.decoding.lost():
            self._mark([number], ("decode", "the decoder shows no frame for this packet"))
        num_packets, stated = self.decoding.check.num_packets, self.media.require_video().frames
        source = self.media.timestamp_source
        self._spread(is_timed=source == "pts" or (source == "dts" and stated == num_packets))
        self.num_cut = max(0, stated - num_packets) if faults else 0

    def _spread(self, *, is_timed: bool) -> None:
        """Mark the frames that may refer to a wrong one: those up to the next picture that refers to none before it.

        Pictures that come after such a picture, and are shown before it, may refer to the group before. Without times,
        the number of frames that are lost is unknown, and so is the place of all that follow.
        """
        entry: _Sent | None = None
        was_wrong = is_wrong = are_leading_wrong = False
        for sent in self.sent:
            if sent.is_entry and (is_timed or not is_wrong):
                was_wrong, is_wrong, are_leading_wrong, entry = is_wrong, sent.fault is not None, False, sent
                sent.is_wrong = is_wrong
            elif entry is not None and _is_shown_before(sent, entry):
                are_leading_wrong |= sent.fault is not None
                sent.is_wrong = was_wrong or is_wrong or are_leading_wrong
            else:
                is_wrong |= sent.fault is not None
                sent.is_wrong = is_wrong

    def shown(self) -> list[tuple[int, _Sent]]:
        """Return the packets that promise a frame, with their numbers, in presentation order."""
        lost = {number for number, _ in self.decoding.lost()}
        found = [(n, sent) for n, sent in enumerate(self.sent) if sent.order is not None or n in lost]
        if self.media.timestamp_source == "pts" and all(sent.pts is not None for _, sent in found):
            backs = [n for n in self.decoding.set_backs if not (self.sent[n - 1].is_wrong or self.sent[n].is_wrong)]
            return sorted(found, key=lambda each: (bisect_right(backs, each[0]), each[1].pts or 0))
        came = sorted((each for each in found if each[1].order is not None), key=lambda each: each[1].order or 0)
        ordered: list[tuple[int, _Sent]] = []
        waiting = [each for each in found if each[1].order is None]
        for each in came:
            while waiting and waiting[0][0] < each[0]:
                ordered.append(waiting.pop(0))
            ordered.append(each)
        return ordered + waiting


def _is_shown_before(sent: _Sent, entry: _Sent) -> bool:
    if sent.pts is not None and entry.pts is not None:
        return sent.pts < entry.pts
    return sent.order is not None and entry.order is not None and sent.order < entry.order


@dataclass(frozen=True)
class _Numbered:
    """One frame that a packet promises, in presentation order."""

    packet: int
    number: int
    seconds: float | None
    sent: _Sent


def _numbered(track: _Track) -> list[_Numbered]:
    """Return the promised frames with their numbers in the source.

    Packets that are not in the file are counted by the time that they leave open, if the rate is constant.
    """
    shown = track.shown()
    seconds = _seconds(track, [sent for _, sent in shown])
    steps = [
        b - a
        for (a, b), ((_, one), (_, other)) in zip(pairwise(seconds), pairwise(shown), strict=True)
        if a is not None and b is not None and b > a and not (one.is_wrong or other.is_wrong)
    ]
    step = median(steps) if steps else 0.0
    is_constant = bool(steps) and all(abs(each - step) < _MAX_STEP_ERROR * step for each in steps)
    numbered: list[_Numbered] = []
    anchor = (track.first_number, None if not seconds else seconds[0])
    for (packet, sent), at in zip(shown, seconds, strict=True):
        last = numbered[-1] if numbered else None
        number = last.number + 1 if last else track.first_number
        is_doubtful = last is not None and (sent.is_wrong or last.sent.is_wrong)
        if is_doubtful and is_constant and at is not None and anchor[1] is not None:
            number = max(anchor[0] + round((at - anchor[1]) / step), anchor[0] + 1 - sent.is_wrong)
            if sent.is_wrong and last is not None and number <= last.number:
                continue  # its time is wrong too
        while numbered and numbered[-1].number >= number:
            numbered.pop()
        numbered.append(_Numbered(packet, number, at, sent))
        if not sent.is_wrong:
            anchor = number, at
    return numbered


def _seconds(track: _Track, shown: Sequence[_Sent]) -> list[float | None]:
    """Return the time of each promised frame [seconds], in presentation order."""
    clock = Clock(track.media)
    if track.media.timestamp_source == "pts":
        return [None if sent.pts is None else clock.seconds(sent.pts) for sent in shown]
    due = sorted(sent.dts for sent in shown if sent.dts is not None)
    if len(due) == len(shown):  # frame n is shown when packet n is due
        return [clock.seconds(dts) for dts in due]
    return [number * float(track.media.frame_seconds) for number in range(len(shown))]


def _selected(track: _Track, on_damage: str) -> KeptFrames | None:
    """Return the frames to keep, and the ranges of the others."""
    numbered = _numbered(track)
    has_own_times = track.media.timestamp_source == "pts"
    shown: dict[int, tuple[int, float | None]] = {}
    last = (-1, -1)
    for each in numbered:
        order = each.sent.order
        is_right = order is not None and not each.sent.is_wrong
        if order is not None and (is_right or on_damage == "keep-concealed") and (each.number, order) > last:
            if order < last[1]:  # the decoder showed it earlier
                continue
            shown[each.packet] = each.number, None if has_own_times else each.seconds
            last = each.number, order
    if not shown:
        return None
    return KeptFrames(shown, DamageFacts(on_damage, tuple(_ranges(track, numbered, shown))))


def _ranges(track: _Track, numbered: Sequence[_Numbered], shown: Mapping[int, Any]) -> Iterator[DamagedFrames]:
    """Yield the ranges of frames that are not cached, or that are cached and may be wrong."""
    current: DamagedFrames | None = None
    expected = 0
    for each in numbered:
        is_cached = each.packet in shown
        if each.number > expected and current is None:  # packets that are not in the file
            current = _new(expected, None, track.sent, is_cached=False)
        if current is not None and (current.is_cached != is_cached or not (each.sent.is_wrong or not is_cached)):
            yield current.replace(stop=each.number, stop_seconds=each.seconds)
            current = None
        if current is None and (each.sent.is_wrong or not is_cached):
            current = _new(each.number, each.seconds, [each.sent, *track.sent], is_cached=is_cached)
        if current is not None and each.sent.fault is not None and not current.message:
            current = current.replace(cause=each.sent.fault[0], message=each.sent.fault[1])
        expected = each.number + 1
    num_cut = max(0, track.num_cut - (expected - track.first_number - len(numbered)))
    if num_cut and (current is None or current.is_cached):
        if current is not None:
            yield current.replace(stop=expected)
        current = _new(expected, None, track.sent[-1:], is_cached=False)
    if current is not None:
        yield current.replace(stop=expected + num_cut)


def _new(number: int, seconds: float | None, packets: Sequence[_Sent], *, is_cached: bool) -> DamagedFrames:
    """Return a range of frames that begins at a number, with the first fault of some packets."""
    cause, message = next((sent.fault for sent in packets if sent.fault is not None), ("decode", ""))
    return DamagedFrames(number, number, cause, message, seconds, None, is_cached)
