"""A process that encodes screenshots: reads PNGs from stdin and writes encoded pictures to stdout.

It ends when its stdin closes, which also happens when its parent is killed. No picture is stored here: the
parent appends the results to the screenshot pack.
"""

from __future__ import annotations

import os
import struct
import sys

from arpo.png import decode
from arpo.storage.picture_codec import encode

MODULE = "arpo.storage.encoder_process"
REQUEST = struct.Struct("<BI")  # a task below, size of the PNG that follows
REPLY = struct.Struct("<I")  # size of the encoded picture that follows
BASE, WHOLE, CHANGE = range(
    3
)  # decode only, without a reply; encode; encode the change from the last picture
NICENESS = 10  # the rollouts come first


def main() -> None:
    os.nice(NICENESS)
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    last = None
    while len(header := requests.read(REQUEST.size)) == REQUEST.size:
        task, size = REQUEST.unpack(header)
        image = decode(requests.read(size))
        if task != BASE:
            payload = encode(image, last if task == CHANGE else None)
            replies.write(REPLY.pack(len(payload)) + payload)
            replies.flush()
        last = image


if __name__ == "__main__":
    main()
