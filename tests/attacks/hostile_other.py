"""Paths that name no dump at all."""

from __future__ import annotations

import os
from pathlib import Path

from pieces import Attacks


def empty(path: Path) -> None:
    path.write_bytes(b"")


def plain_text(path: Path) -> None:
    path.write_text("The dump is in the other folder.")


def noise(path: Path) -> None:
    path.write_bytes(b"\x01" + os.urandom(7) + b"\x02" + os.urandom(500))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.mkdir()


def missing(path: Path) -> None:
    pass


def dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


ATTACKS: Attacks = {
    empty: "the file is empty",
    plain_text: "neither a .pt file of torch.save nor a safetensors file",
    noise: "neither a .pt file of torch.save nor a safetensors file",
    pipe: "not a regular file",
    directory: "is a directory",
    missing: "No such file or directory",
    dangling_link: "No such file or directory",
}
