"""Process to encode screenshots: reads PNGs from stdin and writes encoded pictures to stdout.

It ends when its stdin closes, which also happens when its parent is killed. It stores nothing: the parent
appends the results to the screenshot pack.
"""

from __future__ import annotations

import os
import struct
import sys
from collections import OrderedDict
from typing import Generic, TypeVar

from PIL import Image

from arpo.png import decode
from arpo.storage.picture_codec import encode

MODULE = "arpo.storage.encoder_process"
REQUEST = struct.Struct("<B32s32sI")  # task, names of the picture and of its base, size of the following PNG
REPLY = struct.Struct("<I")  # size of the following encoded picture
BASE, WHOLE, CHANGE = range(3)  # tasks: decode only, without a reply; encode; encode the change from the base
NICENESS = 10  # rollouts and learning come first

_T = TypeVar("_T")


class Recent(Generic[_T]):
    """The pictures used last, by name. The parent has a copy without pixels: it knows the bases to send.

    `limit` is the number of their pixels. A single picture may exceed it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._pictures: OrderedDict[bytes, tuple[int, _T]] = OrderedDict()

    def get(self, name: bytes) -> _T | None:
        if name not in self._pictures:
            return None
        self._pictures.move_to_end(name)
        return self._pictures[name][1]

    def put(self, name: bytes, pixels: int, picture: _T) -> None:
        self._total += pixels - self._pictures.pop(name, (0, picture))[0]
        self._pictures[name] = pixels, picture
        while self._total > self._limit and len(self._pictures) > 1:
            _, (oldest, _) = self._pictures.popitem(last=False)
            self._total -= oldest


def main() -> None:
    """The argument is the limit of `Recent`."""
    os.nice(NICENESS)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    recent = Recent[Image.Image](int(sys.argv[1]))
    while len(header := requests.read(REQUEST.size)) == REQUEST.size:
        task, name, base, size = REQUEST.unpack(header)
        image = decode(requests.read(size))
        if task != BASE:
            payload = encode(image, recent.get(base) if task == CHANGE else None)
            replies.write(REPLY.pack(len(payload)) + payload)
            replies.flush()
        recent.put(name, image.width * image.height, image)


if __name__ == "__main__":
    main()
