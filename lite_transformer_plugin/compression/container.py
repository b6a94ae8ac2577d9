"""Coded tensors as one tensor of bytes, with a checksum each; knows nothing of fairseq.

    4 bytes   "LTC1"
    4 bytes   CRC-32 of what follows up to the sections
    4 bytes   length of the header
    header    JSON, compressed by zstandard: names, shapes, types, lengths, checksums
    sections  positions, values and codes of each tensor in turn

Positions are bits, codes are packed to their own number of bits; either is compressed by zstandard
where that is smaller. Tied tensors are stored once. A checkpoint with such a tensor needs no class
that torch's safe loader would have to learn.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor

from .quantize import Coded, expand

MAGIC = b"LTC1"
LEVEL = 19
PARTS = ("positions", "values", "codes")
RAW, PACKED, BYTES = "raw", "packed", "bytes"  # bytes: a byte a code before zstandard


@dataclass
class Sizes:
    """Bytes of a packed tensor by part, and the stored weights they describe."""

    positions: int = 0
    values: int = 0
    codes: int = 0
    weights: int = 0  # that are stored: no zeros
    bits: int = 0
    numel: int = 0
    same_as: str | None = None
    checksum: int = field(default=0, repr=False)


# --- packing --------------------------------------------------------------------------------------


def pack(tensors: Mapping[str, Coded], level: int = LEVEL) -> Tensor:
    """All tensors as bytes (uint8); names with the same `Coded` share it.

    Args:
        level: zstandard's effort, from 1 to 22.
    """
    header, sections, first = [], [], {}
    for name, coded in tensors.items():
        if id(coded) in first:
            header.append({"name": name, "same_as": first[id(coded)]})
            continue
        first[id(coded)] = name
        entry, parts = _pack_one(name, coded, level)
        header.append(entry)
        sections += parts
    text = json.dumps(header, separators=(",", ":")).encode()
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(text)
    start = struct.pack("<I", len(packed)) + packed
    data = MAGIC + struct.pack("<I", zlib.crc32(start)) + start + b"".join(sections)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _pack_one(name: str, coded: Coded, level: int) -> tuple[dict[str, Any], list[bytes]]:
    entry: dict[str, Any] = {
        "name": name,
        "shape": list(coded.shape),
        "dtype": _name(coded.dtype),
        "stored": [_name(coded.values.dtype), list(coded.values.shape)],
        "bits": coded.bits,
        "group_rows": coded.group_rows,
        "count": coded.stored,
    }
    parts = {"values": (RAW, _bytes_of(coded.values))}
    if coded.positions is not None:
        parts["positions"] = _smallest({RAW: np.packbits(coded.positions.numpy()).tobytes()}, level)
    if coded.codes is not None:
        codes = coded.codes.numpy()
        parts["codes"] = _smallest(
            {RAW: pack_bits(codes, coded.bits), BYTES: codes.tobytes()}, level
        )
    present = [part for part in PARTS if part in parts]
    found = [parts[part][1] for part in present]
    entry["parts"] = [[part, parts[part][0], len(parts[part][1])] for part in present]
    entry["crc"] = _checksum(entry, found)
    return entry, found


def _smallest(forms: Mapping[str, bytes], level: int) -> tuple[str, bytes]:
    compress = zstandard.ZstdCompressor(level=level, write_content_size=False).compress
    found = [(RAW, forms[RAW])]
    for form, data in forms.items():
        found.append((PACKED if form == RAW else form, compress(data)))
    return min(found, key=lambda pair: len(pair[1]))


def pack_bits(codes: np.ndarray, bits: int) -> bytes:
    """Codes (N) of ``bits`` bits each, one after the other, the highest bit first."""
    return np.packbits(np.unpackbits(codes[:, None], axis=1)[:, 8 - bits :]).tobytes()


def unpack_bits(data: bytes, bits: int, count: int) -> np.ndarray:
    """The ``count`` codes that `pack_bits` has packed."""
    if bits == 8:
        return np.frombuffer(data, np.uint8, count).copy()
    flat = np.frombuffer(data, np.uint8)
    if bits == 4:
        return np.stack([flat >> 4, flat & 15], axis=1).reshape(-1)[:count]
    wide = np.unpackbits(flat, count=count * bits).reshape(count, bits)
    codes = np.zeros(count, np.uint8)
    for column in range(bits):
        codes = (codes << 1) | wide[:, column]
    return codes


# --- unpacking ------------------------------------------------------------------------------------


def unpack(data: Tensor) -> dict[str, Coded]:
    """What `pack` has packed; tied names get the same `Coded`.

    Raises:
        ValueError: if a byte is not as it was written, naming the tensor or the header.
    """
    raw = memoryview(data.contiguous().numpy())
    header, start = _header(raw)
    found: dict[str, Coded] = {}
    for entry in header:
        name = entry["name"]
        if "same_as" in entry:
            found[name] = found[entry["same_as"]]
            continue
        sections = []
        for _, _, length in entry["parts"]:
            sections.append(raw[start : start + length])
            start += length
        if _checksum(entry, sections) != entry["crc"]:
            raise ValueError(f"the compressed tensor {name} is damaged: its checksum does not fit")
        found[name] = _unpack_one(entry, sections)
    return found


def sizes(data: Tensor) -> dict[str, Sizes]:
    """How many bytes each tensor takes, by part."""
    found = {}
    for entry in _header(memoryview(data.numpy()))[0]:
        if "same_as" in entry:
            found[entry["name"]] = Sizes(same_as=entry["same_as"])
            continue
        numel = int(np.prod(entry["shape"], dtype=np.int64))
        size = Sizes(bits=entry["bits"], numel=numel, checksum=entry["crc"])
        for part, _, length in entry["parts"]:
            setattr(size, part, length)
        size.weights = entry["count"]
        found[entry["name"]] = size
    return found


def _header(raw: memoryview) -> tuple[list[dict[str, Any]], int]:
    crc, length = struct.unpack_from("<II", raw, 4) if len(raw) >= 12 else (0, 0)
    end = 12 + length
    if raw[:4] != MAGIC or end > len(raw) or zlib.crc32(raw[8:end]) != crc:
        raise ValueError("the header of the compressed tensors is damaged")
    return json.loads(zstandard.ZstdDecompressor().decompress(bytes(raw[12:end]))), end


def _unpack_one(entry: Mapping[str, Any], sections: list[memoryview]) -> Coded:
    given = {
        part: (form, section)
        for (part, form, _), section in zip(entry["parts"], sections, strict=True)
    }
    shape, stored = tuple(entry["shape"]), entry["stored"]
    numel = int(np.prod(shape, dtype=np.int64))
    values = _tensor(given["values"][1], *stored)
    positions = codes = None
    if "positions" in given:
        packed = np.frombuffer(_plain(*given["positions"], -(-numel // 8)), np.uint8)
        positions = torch.from_numpy(np.unpackbits(packed, count=numel).view(bool))
    if "codes" in given:
        form, count, bits = given["codes"][0], entry["count"], entry["bits"]
        plain = _plain(*given["codes"], count if form == BYTES else -(-count * bits // 8))
        codes = unpack_bits(plain, 8 if form == BYTES else bits, count)
        codes = torch.from_numpy(codes)
    dtype = getattr(torch, entry["dtype"])
    return Coded(shape, dtype, values, codes, positions, entry["bits"], entry["group_rows"])


def _plain(form: str, section: memoryview, size: int) -> bytes:
    if form == RAW:
        return bytes(section)
    return zstandard.ZstdDecompressor().decompress(bytes(section), max_output_size=size)


def _checksum(entry: Mapping[str, Any], sections: list) -> int:
    crc = zlib.crc32(entry["name"].encode())
    for section in sections:
        crc = zlib.crc32(section, crc)
    return crc


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _tensor(section: memoryview, dtype: str, shape: list[int]) -> Tensor:
    kind = getattr(torch, dtype)
    if not len(section):
        return torch.zeros(shape, dtype=kind)
    return torch.frombuffer(bytearray(section), dtype=torch.uint8).view(kind).reshape(shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- models ---------------------------------------------------------------------------------------

KEY = "compressed_tensors"  # the only entry of a compressed checkpoint's model


def is_packed(model: Mapping[str, Any]) -> bool:
    return KEY in model


def expand_all(model: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's tensors by name, expanded if they are packed; tied names share one.

    Raises:
        ValueError: as `unpack` does.
    """
    if not is_packed(model):
        return dict(model)
    full: dict[int, Tensor] = {}
    coded = unpack(model[KEY])
    for one in coded.values():
        if id(one) not in full:
            full[id(one)] = expand(one)
    return {name: full[id(one)] for name, one in coded.items()}
