#!/usr/bin/env python3
"""A video of an empty place through which something walks now and then, as YUV4MPEG2 on standard output.

The same arguments give the same bytes. A camera's noise lies over everything; a box crosses the picture in the frames that
`--moving` names, as ranges counted from 0. Nothing but the standard library is needed.

    clip.py --frames 180 --moving 130-139,160-164 | nc HOST PORT
"""

import argparse
import random
import sys

NOISES = 16  # Different ones, in turn.
SPREAD = 5  # How much brighter or darker noise makes a pixel, at the most.


def ranges(text):
    """The numbers that `1-3,7` names."""
    numbers = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def ground(width, height):
    """A picture with some structure: light from the left, stripes from above."""
    return b"".join(
        bytes(60 + (x * 90) // width + (25 if (y // 32) % 2 else 0) for x in range(width)) for y in range(height)
    )


def noisy(picture, seed):
    """The picture with a camera's noise."""
    noise = random.Random(seed).randbytes(len(picture))
    return bytes(pixel + byte % (2 * SPREAD + 1) - SPREAD for pixel, byte in zip(picture, noise))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=180)
    parser.add_argument("--moving", type=ranges, default=ranges("130-139,160-164"))
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--height", type=int, default=576)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    width, height = options.width, options.height
    empty = ground(width, height)
    pictures = [noisy(empty, options.seed * NOISES + index) for index in range(NOISES)]
    box = (max(width // 12, 8), max(height // 5, 8))
    out = sys.stdout.buffer
    out.write(f"YUV4MPEG2 W{width} H{height} F25:1 Ip A1:1 Cmono\n".encode())
    for number in range(options.frames):
        out.write(b"FRAME\n")
        picture = pictures[number % NOISES]
        if number in options.moving:
            changed = bytearray(picture)
            left = (number * 9) % (width - box[0])
            top = height // 2 - box[1] // 2
            for y in range(top, top + box[1]):
                changed[y * width + left : y * width + left + box[0]] = b"\xe6" * box[0]
            picture = bytes(changed)
        out.write(picture)
    out.flush()


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        # The reader has enough.
        sys.stderr.close()
        sys.exit(1)
