"""SGLang's KV-canary operations from the bare files of its wheel, and its CUDA kernels compiled from them.

SGLang's package initialisers, and what it compiles kernels with, import a whole server. Here its packages are mere
paths, what its operations register themselves with is empty, and a kernel is one nvcc command. ``tvm_ffi`` (the package
apache-tvm-ffi) and nvcc are needed when a kernel is first launched, not before.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

OPERATIONS = "sglang.kernels.ops.kv_canary"
_PACKAGES = ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.jit")
_REGISTRY = {
    "sglang.kernels.registry": ("register_kernel",),
    "sglang.kernels.spec": ("KernelBackend", "KernelSpec"),
}
_FFI_HEADERS = ("container/tensor.h", "dtype.h", "error.h", "extra/c_env_api.h", "function.h")
_loading = threading.Lock()


class KernelBuildError(RuntimeError):
    """A kernel of SGLang's could not be compiled; the message is one line."""


class _Anything:
    """Takes the place of a name that is called or looked into, and whose results nobody reads."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return _Anything()

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments else self


class _TemplateArguments(tuple[str, ...]):
    """C++ template arguments, which SGLang both unpacks and formats."""

    def __str__(self) -> str:
        return ", ".join(self)


def make_cpp_args(*values: bool | int) -> _TemplateArguments:
    """Spell values as C++ does."""
    return _TemplateArguments(str(value).lower() for value in values)


def nvcc_path() -> str:
    """Where nvcc is: ``CUDA_HOME`` or ``CUDA_PATH``, the PATH, the usual place."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return str(Path(home, "bin", "nvcc"))
    return shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def _cache_folder() -> Path:
    folder = Path(tempfile.gettempdir(), f"canary-numba-sglang-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        # Its libraries are loaded into this process.
        raise KernelBuildError(f"{folder} belongs to someone else")
    return folder


@dataclass(frozen=True)
class Compiler:
    """Compiles kernels from ``folder``, the wheel's ``sglang/kernels/jit``."""

    folder: Path

    def source(self, files: Sequence[str], wrappers: Sequence[tuple[str, str]]) -> str:
        """One translation unit that includes the files and exports functions as (exported name, C++ name)."""
        includes = [f"#include <tvm/ffi/{header}>" for header in _FFI_HEADERS]
        includes += [f'#include "{self.folder / "csrc" / file}"' for file in files]
        exports = [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, ({function}));" for name, function in wrappers]
        return "\n".join([*includes, "namespace sglang {", *exports, "}", ""])

    def command(self, capability: tuple[int, int]) -> list[str]:
        """The nvcc command that makes kernel.so of kernel.cu, for GPUs of a compute capability."""
        from tvm_ffi import libinfo

        major, minor = capability
        target = f"{major}{minor}{'a' if major >= 9 else ''}"
        includes = [self.folder / "include", libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
        library = Path(libinfo.find_libtvm_ffi())
        return [
            *(nvcc_path(), "-shared", "-Xcompiler", "-fPIC", "-std=c++20", "-O3", "--expt-relaxed-constexpr"),
            f"-DSGL_CUDA_ARCH={major * 100 + minor * 10}",
            f"-gencode=arch=compute_{target},code=sm_{target}",
            *(f"-I{path}" for path in dict.fromkeys(map(str, includes))),
            *("-o", "kernel.so", "kernel.cu"),
            *(f"-L{library.parent}", f"-l{library.stem.removeprefix('lib')}"),
        ]

    def build(self, source: str, command: Sequence[str]) -> Path:
        """Compile, unless the same command over the same files has been run before.

        Raises
        ------
        KernelBuildError
            nvcc cannot be run or fails.
        """
        key = hashlib.sha256("\0".join([source, *command]).encode())
        for file in sorted([*self.folder.glob("csrc/kv_canary/*"), *self.folder.glob("include/**/*.*h*")]):
            key.update(file.read_bytes())
        library = _cache_folder() / f"{key.hexdigest()[:24]}.so"
        if library.exists():
            return library
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            Path(scratch, "kernel.cu").write_text(source)
            try:
                done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
            except OSError as error:
                raise KernelBuildError(f"{command[0]}: {error.strerror}") from error
            if done.returncode:
                lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
                raise KernelBuildError(f"nvcc: {next((line for line in lines if 'error' in line), lines[-1])}")
            Path(scratch, "kernel.so").replace(library)
        return library

    def load_jit(self, *_: str, cuda_files: Sequence[str], cuda_wrappers: Sequence[tuple[str, str]]) -> Any:
        """Compile and load a module, as SGLang's function of this name; the first arguments only name it."""
        try:
            import tvm_ffi
        except ImportError as error:
            raise KernelBuildError(f"not importable: {error}") from error
        library = self.build(self.source(cuda_files, cuda_wrappers), self.command(torch.cuda.get_device_capability()))
        with _loading:
            return tvm_ffi.load_module(str(library))


def _module(name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


def make_importable(folder: Path) -> None:
    """Let ``sglang.kernels.ops.kv_canary`` be imported from the files of the wheel in ``folder``."""
    for name in _PACKAGES:
        _module(name, __path__=[str(folder.joinpath(*name.split(".")))])
    for name, attributes in _REGISTRY.items():
        _module(name, **{attribute: _Anything() for attribute in attributes})
    compiler = Compiler(folder.joinpath("sglang", "kernels", "jit").resolve())
    _module(
        "sglang.kernels.jit.utils",
        cache_once=functools.cache,
        load_jit=compiler.load_jit,
        make_cpp_args=make_cpp_args,
    )
