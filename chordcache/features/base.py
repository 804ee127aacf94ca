"""The interface of an extractor: one feature of a video, fed by the one decode that all features share.

A plug-in is any subclass of ``Extractor`` that a config names as ``extractor: "mypackage.module:Class"``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.media.frame import Frame

if TYPE_CHECKING:  # the modules of features are also imported where a cache is read, without a decoder
    from chordcache.media.audio_track import Sound

Rows: TypeAlias = Mapping[str, "np.ndarray | Sequence[bytes]"]
"""Array name to its next rows, [shape=(n, ...)] where n may be 0, or to its next n records of bytes."""

NO_ROWS: Rows = {}


@dataclass(frozen=True)
class VideoInfo:
    """The facts about a video that are known before its first frame is decoded."""

    codec: str
    """libavcodec's canonical name, such as "h264" """
    width: int
    """[pixels] as stored"""
    height: int
    """[pixels] as stored"""
    has_sound: bool
    """True if the video has an audio track that can be decoded"""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the item that ``Extractor.uses`` names, such as "caption". A field without a value is None or
    empty"""
    sound_problem: str = "no audio track"
    """Reason why ``has_sound`` is False"""
    folder: tuple[str, str | None] = ("", None)
    """Folder that the paths of the index are relative to, and the real folder that links must not lead out of"""


class Extractor:
    """The maker of one feature of one video. A new instance is made for each video: ``Class(name, **params)``.

    The array ``name`` is the feature itself. Arrays ``name.something`` belong to it. The first rows of an array fix the
    shape of a row and the dtype. An extractor must return each array at least once, even if the array has no rows.

    Parameters
    ----------
    name : str
        Name of the feature.
    """

    version: ClassVar[int] = 1
    """Version of the extractor, raised if equal parameters would give other numbers; part of the fingerprint"""
    needs_motion_vectors: ClassVar[bool] = False
    needs_sound: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    """True if a row depends only on its frame and the next one. ``verify --source`` then makes some rows again"""
    uses: ClassVar[tuple[str, ...]] = ()
    """Fields of the item that the extractor needs, of "root", "path", "segment", "label", "labels", "caption",
    "captions", "extra", and the column "series" of "extra". ``begin`` gets them. If one of them changes, the feature is
    made again"""
    units: ClassVar[Mapping[str, str]] = {}
    """Part of the array name after the feature's ("" for the feature, "scale" for ``name.scale``) to its unit"""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model: Any = None
        """Result of ``setup``. It is set before ``begin``"""
        self.facts: dict[str, Any] = {}
        """Plain data for the sidecar, such as a start time. It is read after ``finish``"""

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the keyword arguments of a built-in extractor: all fields of its section of the config.

        A plug-in always gets the parameters of its section.
        """
        return asdict(section)

    @classmethod
    def identity(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments that change the numbers. They are part of the fingerprint."""
        return arguments

    @classmethod
    def fields_used(cls, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields of the item that an extractor with these arguments needs, by default ``uses``."""
        return tuple(cls.uses)

    @classmethod
    def picture_used(cls, picture: PictureConfig) -> PictureConfig:
        """Return the settings of pictures, with the default for each that does not change the numbers.

        They are part of the fingerprint.
        """
        return picture

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return what must be installed first, with the command that installs it, or None if nothing is missing.

        ``arguments`` are the keyword arguments that the extractor will get.
        """
        return None

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Any:
        """Load what all videos share, such as the weights of a network.

        It runs once in each process, outside of the time and the memory limit of a file. An exception ends the build,
        since no video is at fault.

        Parameters
        ----------
        device : str
            Device of the network: "cpu", or one of the machine's for a ``NetworkExtractor``, such as "cuda:0".
        **arguments
            The keyword arguments of the extractor.

        Returns
        -------
        object
            The attribute ``model`` of all extractors in this process that have these arguments.
        """
        return None

    def begin(self, video: VideoInfo) -> str | None:
        """Inspect the video. Return the reason why the feature is absent from it, or None."""
        return None

    def add_frame(self, frame: Frame) -> Rows:
        """Take the next kept frame. Return the rows that are complete now. They are written at once."""
        return NO_ROWS

    def add_sound(self, sound: Sound) -> Rows:
        """Take the next piece of the audio track, if ``needs_sound``. It may come before or after its frames."""
        return NO_ROWS

    def finish(self) -> Rows:
        """Return the remaining rows. If the extractor never returned any, ``absent`` gives the reason."""
        return NO_ROWS

    @property
    def absent(self) -> str | None:
        """Reason, valid after ``finish``, why the feature is absent although ``begin`` returned None."""
        return None

    def num_rows(self, num_frames: int) -> int | None:
        """Return how many rows each array must have for ``num_frames`` kept frames.

        Return None if the feature has its own clock. ``facts`` then describe it, see ``row_clock``:

        - ``start_seconds``, ``row_seconds`` and ``silence``: row j is centered on ``start_seconds + j * row_seconds``.
          ``silence`` is the value of rows where data is missing.
        - ``frames_per_row`` and ``frames_in_first_row``: row 0 covers the first frames, each later row the next ones.
          Frames after the last whole group may have no row. With ``frames_per_clip``, this starts again after so many
          frames.
        - ``is_of_video``: true: the rows belong to the whole video.
        """
        return num_frames


def missing_package(extra: str, *packages: str) -> str | None:
    """Return the command that installs the first of some packages of an extra that is missing, or None."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"needs the package {package}; run: pip install 'chordcache[{extra}]'"
    return None


class SoundExtractor(Extractor):
    """The maker of a feature of the audio track, mixed down if ``mono``, at a rate [Hz] or at that of the track."""

    needs_sound: ClassVar[bool] = True

    def __init__(self, name: str, sample_rate: int | None, *, mono: bool) -> None:
        super().__init__(name)
        from chordcache.media.audio_track import AudioTrack  # not at the top: it loads PyAV, which readers do without

        self._mono = mono
        self._track = AudioTrack("mono" if mono else None, sample_rate)

    @classmethod
    def picture_used(cls, picture: PictureConfig) -> PictureConfig:
        """Return the frame rate and the buckets. They determine the seconds and the frame times that are stored."""
        return type(picture)(fps=picture.fps, buckets=picture.buckets)

    def begin(self, video: VideoInfo) -> str | None:
        """Return the reason why the feature is absent: the video has no audio track that can be decoded."""
        return None if video.has_sound else video.sound_problem

    @property
    def absent(self) -> str | None:
        """Reason why the feature is absent: the track has no samples, or its clock is not usable."""
        return self._track.problem

    def num_rows(self, num_frames: int) -> int | None:
        """Return None, because rows follow the clock of the sound."""
        return None

    def add_sound(self, sound: Sound) -> Rows:
        """Take the next piece of the audio track. Return the rows that ``add_samples`` returns."""
        return self.add_samples(self._track.add(sound))

    def add_samples(self, pieces: Iterable[np.ndarray]) -> Rows:
        """Take pieces of the signal [shape=(C, n), dtype=float32], which has no gaps, and return rows."""
        return NO_ROWS
