"""PNG files of Chromium made small: at most 256 colours, without the help of a library."""

import struct
import zlib
from collections import Counter

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 256
#: what a colour loses before the rest is chosen: nobody sees it
_STEP = 4


def with_palette(png):
    """The same picture, each of its colours replaced by the nearest of the 256 most frequent ones."""
    width, height, pixels = _read(png)
    rounded = [pixels[i : i + 3] for i in range(0, len(pixels), 3)]
    counted = Counter(rounded)
    kept = list(counted) if len(counted) <= COLOURS else _chosen(counted)
    places = {colour: number for number, colour in enumerate(kept)}
    for colour in counted:
        if colour not in places:
            places[colour] = min(range(len(kept)), key=lambda n: _distance(kept[n], colour))
    indexes = bytes(places[colour] for colour in rounded)
    rows = b"".join(b"\0" + indexes[y * width : (y + 1) * width] for y in range(height))
    chunks = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
    chunks += _chunk(b"PLTE", b"".join(kept)) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    return _SIGNATURE + chunks


def size(png):
    """Width and height in pixels."""
    return struct.unpack(">II", png[16:24])


def _chosen(counted):
    """The frequent colours, but only one of those that are nearly the same, so that rare ones stay."""
    kept, met = [], set()
    for colour, _ in counted.most_common():
        coarse = bytes(value // _STEP for value in colour)
        if coarse not in met:
            met.add(coarse)
            kept.append(colour)
            if len(kept) == COLOURS:
                break
    return kept


def _distance(one, other):
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _read(png):
    """Width, height, and three bytes for each pixel."""
    assert png.startswith(_SIGNATURE), "no PNG"
    data, place, header = b"", len(_SIGNATURE), ()
    while place < len(png):
        (length,), kind = struct.unpack(">I", png[place : place + 4]), png[place + 4 : place + 8]
        body = png[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            data += body
        place += length + 12
    width, height, depth, colour, _, _, interlaced = header
    assert (depth, interlaced) == (8, 0), header
    assert colour in (2, 6), header
    step = 3 if colour == 2 else 4
    pixels = b"".join(_unfiltered(zlib.decompress(data), width * step, step))
    if step == 4:
        pixels = b"".join(pixels[i : i + 3] for i in range(0, len(pixels), 4))
    return width, height, pixels


def _unfiltered(data, row_bytes, step):
    """The rows as they were before PNG's filters."""
    above = bytes(row_bytes)
    for start in range(0, len(data), row_bytes + 1):
        kind, row = data[start], bytearray(data[start + 1 : start + 1 + row_bytes])
        if kind == 2:
            row = bytearray((a + b) & 255 for a, b in zip(row, above, strict=True))
        elif kind:
            for i in range(row_bytes):
                left = row[i - step] if i >= step else 0
                corner = above[i - step] if i >= step else 0
                row[i] = (row[i] + _guess(kind, left, above[i], corner)) & 255
        above = bytes(row)
        yield above


def _guess(kind, left, up, corner):
    if kind == 1:
        return left
    if kind == 3:
        return (left + up) // 2
    found = left + up - corner
    # The nearest of the three; of equal ones the first.
    return min((left, up, corner), key=lambda value: abs(found - value))
