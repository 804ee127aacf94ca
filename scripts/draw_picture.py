"""Draw the picture of the README from a clip of ``make demo``.

python scripts/draw_picture.py .clips docs/images/sheet.webp
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2

import chordcache as cc
from chordcache.config.config import config_from_json

FEATURES = ("frames", "flow", "mel")
SETTINGS = {"features": {"flow": {"method": "dis", "preset": "ultrafast", "dtype": "int8"}}}
"""Flow as in ``configs/flow.yaml``"""


def main(clips: str, output: str) -> None:
    """Build a cache of one clip, and write the sheet that ``show`` draws of it."""
    with TemporaryDirectory() as folder:
        index = cc.scan([Path(clips, "animation")], output=Path(folder, "index.json"))
        cache = Path(folder, "cache")
        cc.build(index, cache, features=FEATURES, config=config_from_json(SETTINGS))
        with cc.open_cache(cache) as opened:
            picture = cc.show(opened[0], num_frames=9).picture
    cv2.imwrite(output, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_WEBP_QUALITY, 85])


if __name__ == "__main__":
    main(*sys.argv[1:])
