"""``.pt`` files that would harm a careless reader."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from pieces import GIB, PROTOCOL, Attacks, archive, call, entry, number, patch, tensor, text


def executes(path: Path) -> None:
    archive(path, entry(call("os", "system", text(f"touch {path.parent / 'executed'}"))))


def executes_aside(path: Path) -> None:
    """The call's result is thrown away, so that no key of the dump shows it."""
    call_and_forget = call("builtins", "exec", text(f"open({str(path.parent / 'executed')!r}, 'w')"))
    # POP is no instruction that the reader knows, so the result is stored under a key and the key overwritten.
    archive(path, PROTOCOL + b"}(" + text("x") + call_and_forget + text("x") + b"Nu.")


def executes_bare(path: Path) -> None:
    path.write_bytes(PROTOCOL + call("os", "system", text(f"touch {path.parent / 'executed'}")) + b".")


def allocates_bytearray(path: Path) -> None:
    archive(path, entry(call("builtins", "bytearray", number(8 * GIB))))


def allocates_tensor(path: Path) -> None:
    archive(path, entry(call("torch", "Tensor", number(8 * GIB))))


def zip_bomb(path: Path) -> None:
    archive(path, entry(b"N"), members={"data/0": bytes(GIB // 2)}, compression=zipfile.ZIP_DEFLATED)


def huge_pickle(path: Path) -> None:
    archive(path, entry(text("x" * (17 << 20))))


def many_instructions(path: Path) -> None:
    archive(path, PROTOCOL + b"}" * (15 << 20) + b".")


def deep_lists(path: Path) -> None:
    archive(path, entry(b"]" * 200_000 + b"a" * 199_999))


def deep_tuples_as_key(path: Path) -> None:
    """Hashing it would overflow the C stack."""
    archive(path, PROTOCOL + b"})" + b"\x85" * 900_000 + b"Ns.")


def billion_laughs(path: Path) -> None:
    """Lists of ten times the same list: whoever follows each reference visits 10**25 of them."""
    lists = text("list 0") + b"]q\x00(" + text("ha") * 10 + b"e"
    for level in range(1, 25):
        lists += text(f"list {level}") + b"]q" + bytes((level,)) + b"(" + (b"h" + bytes((level - 1,))) * 10 + b"e"
    archive(path, PROTOCOL + b"}(" + text("format") + text("canary-dump") + lists + b"u.")


def contains_itself(path: Path) -> None:
    archive(path, entry(b"]q\x00h\x00a"))


def huge_int(path: Path) -> None:
    archive(path, entry(b"\x8a\xff" + b"\x7f" * 255))


def long_int(path: Path) -> None:
    archive(path, entry(b"\x8b" + struct.pack("<L", 1 << 20) + b"\x7f" * (1 << 20)))


def lone_surrogate(path: Path) -> None:
    archive(path, entry(text("\ud800")))


def huge_memo_index(path: Path) -> None:
    """Unpicklers that keep their memo in an array would allocate it all."""
    archive(path, entry(b"Nr" + struct.pack("<L", 0xFFFFFFF0) + b"h\x01"))


def storage_past_its_member(path: Path) -> None:
    archive(path, entry(tensor((8,), (1,), count=8)))


def storage_of_exabytes(path: Path) -> None:
    archive(path, entry(tensor((1 << 60,), (1,), count=1 << 60)))


def strides_past_storage(path: Path) -> None:
    archive(path, entry(tensor((2, 2), (1 << 40, 1))))


def offset_past_storage(path: Path) -> None:
    archive(path, entry(tensor((4,), (1,), offset=1)))


def expanded_tensor(path: Path) -> None:
    archive(path, entry(tensor((1 << 60,), (0,))))


def negative_size(path: Path) -> None:
    archive(path, entry(tensor((-1, 4), (1, 1))))


def negative_stride(path: Path) -> None:
    archive(path, entry(tensor((4,), (-1,), offset=3)))


def many_dims(path: Path) -> None:
    archive(path, entry(tensor((1,) * 100_000, (1,) * 100_000)))


def storage_in_two_ways(path: Path) -> None:
    archive(path, entry(b"](" + tensor((1,), (1,), count=1) + tensor((4,), (1,)) + b"e"))


def requires_grad(path: Path) -> None:
    data = entry(tensor((4,), (1,)))
    archive(path, data.replace(b"\x89", b"\x88"))


def missing_storage(path: Path) -> None:
    archive(path, entry(tensor((4,), (1,))), members={"data/0": b""})
    patch(path, b"archive/data/0", b"archive/data/1")


def overlapping_members(path: Path) -> None:
    """The directory says that data/0 reaches over the members after it."""
    archive(path, entry(tensor((4,), (1,))), members={"data/1": bytes(300)})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"archive/data/0") - 46
    struct.pack_into("<2L", data, at + 20, 200, 200)
    path.write_bytes(data)


def member_past_end(path: Path) -> None:
    archive(path, entry(tensor((4,), (1,))))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"archive/data/0") - 46
    struct.pack_into("<2L", data, at + 20, GIB, GIB)
    path.write_bytes(data)


def two_directories(path: Path) -> None:
    """An archive inside the comment of another: which one is read depends on who reads."""
    archive(path, entry(b"N"))
    inner = path.read_bytes()
    with zipfile.ZipFile(path, "a") as file:
        file.comment = inner


def prefixed(path: Path) -> None:
    """Bytes before the archive: offsets are then counted from two places."""
    archive(path, entry(b"N"))
    path.write_bytes(b"PK\3\4" + bytes(60) + path.read_bytes())


def same_name_twice(path: Path) -> None:
    archive(path, entry(b"N"), members={"DATA.PKL": entry(b"N")})


def big_endian(path: Path) -> None:
    """torch would swap the bytes of every tensor: a copy of the whole file in memory."""
    archive(path, entry(b"N"), members={"byteorder": b"big"})


def huge_note(path: Path) -> None:
    """Notes beside the pickle are read into memory whole."""
    archive(path, entry(b"N"), members={"byteorder": bytes(1 << 16)})


def torchscript(path: Path) -> None:
    archive(path, PROTOCOL + call("__torch__", "Model") + b".", members={"constants.pkl": PROTOCOL + b")."})


def truncated(path: Path) -> None:
    archive(path, entry(tensor((4,), (1,))))
    path.write_bytes(path.read_bytes()[:-30])


def not_torch(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("word/document.xml", "<w/>")


def cut_directory(path: Path) -> None:
    archive(path, entry(b"N"))
    data = bytearray(path.read_bytes())
    struct.pack_into("<2H", data, len(data) - 14, 90, 90)
    path.write_bytes(data)


ATTACKS: Attacks = {
    executes: "x: asks for os.system",
    executes_aside: "its pickle asks for builtins.exec",
    executes_bare: "a bare pickle",
    allocates_bytearray: "x: asks for builtins.bytearray",
    allocates_tensor: "x: asks for torch.Tensor",
    zip_bomb: "is compressed",
    huge_pickle: "'data.pkl' has 178",
    many_instructions: "more than 1000000 instructions",
    deep_lists: "nested more than 32 levels deep",
    deep_tuples_as_key: "a dict key of type tuple",
    billion_laughs: "version: expected",
    contains_itself: "version: expected",
    huge_int: "an int of 255 bytes",
    long_int: "uses instruction b'\\x8b'",
    lone_surrogate: "damaged at byte",
    huge_memo_index: "damaged at byte",
    storage_past_its_member: "x: the file holds only 32 of its 64 bytes",
    storage_of_exabytes: "x: the file holds only 32 of its",
    strides_past_storage: "x: a tensor of shape [2, 2], which reaches to byte",
    offset_past_storage: "which reaches to byte 40 of a storage of 32 bytes",
    expanded_tensor: "x: a tensor of shape [1152921504606846976], which is",
    negative_size: "describes a tensor as torch.save does not",
    negative_stride: "describes a tensor as torch.save does not",
    many_dims: "describes a tensor as torch.save does not",
    storage_in_two_ways: "describes storage '0' in two ways",
    requires_grad: "x: asks for a tensor that requires grad",
    missing_storage: "x: its bytes, member data/0, are missing",
    overlapping_members: "overlaps another",
    member_past_end: "reaches past the end",
    two_directories: "contradicts the file's length",
    prefixed: "contradicts",
    same_name_twice: "a second of that name",
    big_endian: "not little-endian",
    huge_note: "'byteorder' has 65536 bytes",
    torchscript: "the dump: asks for __torch__.Model",
    truncated: "truncated",
    not_torch: "no data.pkl",
    cut_directory: "cut short",
}
