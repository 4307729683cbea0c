"""Compiling SGLang's kernels from its wheel, with a false nvcc: the unit, the command, what is built when."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from benchmarks import sglang_wheel
from benchmarks.peer import find_peers
from benchmarks.sglang_wheel import Compiler, KernelBuildError, make_cpp_args

OPERATION = """
from sglang.kernels.jit.utils import cache_once, load_jit, make_cpp_args

def {launcher}(**arguments):
    return {getter}({values})

@cache_once
def {getter}(*values):
    arguments = make_cpp_args(*values)
    wrappers = [("run_{name}", f"canary::Kernel<{{arguments}}>::run")]
    return load_jit("{name}", *arguments, cuda_files=["kv_canary/{name}.cuh"], cuda_wrappers=wrappers)
"""
PARTS = {
    "verify": ("verify.py", "launch_canary_verify_kernel", "_jit_canary_verify_module", "False"),
    "write": ("write.py", "launch_canary_write_kernel", "_jit_canary_write_module", ""),
    "plan": ("plan/entries_kernel.py", "launch_plan_entries_kernel", "_jit_plan_entries_module", "False, False"),
}
PLAN_API = """
from sglang.kernels.ops.kv_canary.plan.entries_kernel import launch_plan_entries_kernel as launch_canary_plan_kernels
"""
OPERATIONS_INIT = """
from sglang.kernels.registry import register_kernel
from sglang.kernels.spec import KernelBackend, KernelSpec

register_kernel(KernelSpec(op="a", backend=KernelBackend.JIT))
"""
# Leaves the unit it compiled as its library; fails where the unit includes a file that says so.
NVCC = """#!/bin/sh
echo "$@" >> {log}
for included in $(sed -n 's/^#include "\\(.*\\)"$/\\1/p' kernel.cu); do
    if grep -q broken "$included"; then
        echo "In file included from kernel.cu:" >&2
        echo "kernel.cu(7): error: no such thing" >&2
        exit 2
    fi
done
cp kernel.cu kernel.so
"""


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    """Forget the modules of the wheel."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "sglang":
            del sys.modules[name]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel's files, an nvcc that only copies, and a tvm_ffi that hands back what it should load."""
    folder = tmp_path / "wheel"
    jit, operations = folder / "sglang/kernels/jit", folder / "sglang/kernels/ops/kv_canary"
    for made in (jit / "csrc/kv_canary", jit / "include/sgl_kernel", operations / "plan"):
        made.mkdir(parents=True)
    (jit / "include/sgl_kernel/utils.cuh").write_text("")
    (folder / "sglang/version.py").write_text('__version__ = "0.5.23"\n')
    (operations / "__init__.py").write_text(OPERATIONS_INIT)
    (operations / "plan/__init__.py").write_text("")
    (operations / "plan/api.py").write_text(PLAN_API)
    for name, (file, launcher, getter, values) in PARTS.items():
        (jit / f"csrc/kv_canary/{name}.cuh").write_text("")
        text = OPERATION.format(name=name, launcher=launcher, getter=getter, values=values)
        (operations / file).write_text(text)
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(NVCC.format(log=tmp_path / "nvcc.log"))
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(sglang_wheel.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    tvm_ffi = types.ModuleType("tvm_ffi")
    tvm_ffi.load_module = Path  # type: ignore[attr-defined]
    tvm_ffi.libinfo = types.SimpleNamespace(  # type: ignore[attr-defined]
        find_include_path=lambda: "/ffi/include",
        find_dlpack_include_path=lambda: "/ffi/dlpack",
        find_libtvm_ffi=lambda: "/ffi/lib/libtvm_ffi.so",
    )
    monkeypatch.setitem(sys.modules, "tvm_ffi", tvm_ffi)
    return folder


def commands(wheel: Path) -> list[str]:
    log = wheel.parent / "nvcc.log"
    return log.read_text().splitlines() if log.exists() else []


def test_template_arguments_are_spelt_as_cpp_does() -> None:
    arguments = make_cpp_args(True, False, 7)
    assert f"Kernel<{arguments}>" == "Kernel<true, false, 7>"
    assert [*arguments] == ["true", "false", "7"]


def test_the_unit_includes_the_file_and_exports_the_function(wheel: Path) -> None:
    jit = wheel / "sglang/kernels/jit"
    lines = Compiler(jit).source(["kv_canary/write.cuh"], [("write_it", "canary::write<1, 2>")]).splitlines()
    assert f'#include "{jit}/csrc/kv_canary/write.cuh"' in lines
    assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC(write_it, (canary::write<1, 2>));" in lines
    assert "#include <tvm/ffi/function.h>" in lines


@pytest.mark.parametrize(
    ("capability", "target", "define"), [((9, 0), "90a", 900), ((8, 6), "86", 860), ((10, 3), "103a", 1030)]
)
def test_the_command_names_the_gpu(wheel: Path, capability: tuple[int, int], target: str, define: int) -> None:
    command = Compiler(wheel).command(capability)
    assert command[0] == str(wheel.parent / "cuda/bin/nvcc")
    assert f"-gencode=arch=compute_{target},code=sm_{target}" in command
    assert f"-DSGL_CUDA_ARCH={define}" in command
    assert [argument for argument in command if argument.startswith(("-I", "-L", "-l"))] == [
        *(f"-I{wheel}/include", "-I/ffi/include", "-I/ffi/dlpack", "-L/ffi/lib", "-ltvm_ffi")
    ]


class TestBuild:
    def test_once_until_a_file_or_the_command_changes(self, wheel: Path) -> None:
        compiler = Compiler(wheel / "sglang/kernels/jit")
        source, command = compiler.source(["kv_canary/write.cuh"], []), compiler.command((9, 0))
        first = compiler.build(source, command)
        assert first.read_text() == source
        assert compiler.build(source, command) == first
        assert len(commands(wheel)) == 1
        (compiler.folder / "include/sgl_kernel/utils.cuh").write_text("// changed")
        (compiler.folder / "csrc/kv_canary/write.cuh").write_text("// changed")
        second = compiler.build(source, command)
        assert second != first
        assert compiler.build(source, compiler.command((10, 0))) not in (first, second)
        assert len(commands(wheel)) == 3
        assert {path.suffix for path in first.parent.iterdir()} == {".so"}, "nothing else is left behind"

    def test_a_compile_error_is_one_line(self, wheel: Path) -> None:
        compiler = Compiler(wheel / "sglang/kernels/jit")
        (compiler.folder / "csrc/kv_canary/write.cuh").write_text("broken")
        with pytest.raises(KernelBuildError, match=r"^nvcc: kernel\.cu\(7\): error: no such thing$"):
            compiler.build(compiler.source(["kv_canary/write.cuh"], []), compiler.command((9, 0)))

    def test_no_nvcc(self, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_HOME", "/nowhere")
        compiler = Compiler(wheel / "sglang/kernels/jit")
        with pytest.raises(KernelBuildError, match=r"^/nowhere/bin/nvcc: No such file"):
            compiler.build("", compiler.command((9, 0)))


class TestFindPeers:
    def test_from_the_wheel(self, wheel: Path) -> None:
        peers = find_peers(wheel)
        assert peers.about.startswith(f"0.5.23 from {wheel}, compiled in ")
        assert "left out" not in peers.about
        assert peers.launchers.keys() == {"verify", "write", "plan"}
        assert len(commands(wheel)) == 3
        # What was compiled ahead is what a launch takes.
        unit = peers.launchers["plan"]().read_text()  # type: ignore[func-returns-value]
        assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC(run_plan, (canary::Kernel<false, false>::run));" in unit
        assert len(commands(wheel)) == 3

    def test_a_kernel_that_does_not_compile_is_left_out(self, wheel: Path) -> None:
        (wheel / "sglang/kernels/jit/csrc/kv_canary/write.cuh").write_text("broken")
        peers = find_peers(wheel)
        assert peers.launchers.keys() == {"verify", "plan"}
        assert "; write left out, KernelBuildError: nvcc: kernel.cu(7): error: no such thing" in peers.about
        assert "\n" not in peers.about

    def test_without_tvm_ffi(self, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tvm_ffi", None)
        peers = find_peers(wheel)
        assert peers.launchers == {}
        assert peers.about.count("left out, KernelBuildError: not importable: ") == 3

    def test_a_folder_without_the_wheel(self, tmp_path: Path) -> None:
        peers = find_peers(tmp_path)
        assert peers.launchers == {}
        assert peers.about.startswith("not importable: No module named 'sglang.kernels.ops.kv_canary'")

    def test_modules_come_from_the_folder(self, wheel: Path) -> None:
        find_peers(wheel)
        module = importlib.import_module("sglang.kernels.ops.kv_canary.verify")
        assert module.__file__ == str(wheel / "sglang/kernels/ops/kv_canary/verify.py")
