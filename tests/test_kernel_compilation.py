"""Every kernel compiles for every architecture without a warning, and the table of what it takes there is current.

The table is written when all has been compiled so, and knows what that was: a text that is still the same is not
compiled again here, which would take a quarter of an hour.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qwen_cuda.building import ROOT, BuildError, resources, toolchain
from qwen_cuda.building.ptxas import readable, usages

SOURCES = resources.sources()


def missing_nvcc() -> str:
    """Why nothing can be compiled for a GPU here; empty when it can."""
    try:
        compiler, archs = toolchain.nvcc(), list(resources.ARCHS)
        if toolchain.architectures(archs, compiler) != archs:
            return f"nvcc {compiler.version} does not build for all of {archs}"
        toolchain.ninja()
    except BuildError as error:
        return error.sentence
    return ""


needs_nvcc = pytest.mark.skipif(bool(missing_nvcc()), reason=missing_nvcc() or "nvcc is here")


RENEW = "run: python -m qwen_cuda.building.resources --write"
KNOWN = json.loads(resources.TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_kernel_file_has_been_compiled_for_every_architecture_without_a_warning(file: Path) -> None:
    name = file.relative_to(ROOT).as_posix()
    assert KNOWN["compiled"].get(name) == resources.text_key(file), RENEW
    assert KNOWN["files"][name]
    registers = KNOWN["numbers"].index("registers")
    for kernel, usage in KNOWN["files"][name].items():
        assert list(usage) == [str(arch) for arch in KNOWN["archs"]], kernel
        assert all(0 < numbers[registers] <= 255 for numbers in usage.values()), kernel


@needs_nvcc
@pytest.mark.slow
def test_the_table_of_resources_says_what_the_compiler_says() -> None:
    if KNOWN["nvcc"] != (here := resources.nvcc_release()):
        pytest.skip(f"the table is of nvcc {KNOWN['nvcc']}, and here is {here}")
    file = ROOT / "kernels" / "cuda" / "silu_mul.cu"
    rows = json.loads(resources.as_json(resources.compile_all([file])))["files"]
    assert rows == {name: KNOWN["files"][name] for name in rows}, RENEW


def test_a_changed_header_is_a_changed_text(tmp_path: Path) -> None:
    file, header = tmp_path / "k.cu", tmp_path / "k.cuh"
    file.write_text('#include "k.cuh"\n')
    header.write_text("// one\n")
    before = resources.text_key(file)
    header.write_text("// two\n")
    assert resources.text_key(file) != before
    assert resources.text_key(file, ["-O0"]) != resources.text_key(file)


def test_the_page_shows_the_table() -> None:
    text = resources.PAGE.read_text(encoding="utf-8")
    assert resources.page(text, KNOWN) == text, RENEW
    assert list(KNOWN["files"]) == [path.relative_to(ROOT).as_posix() for path in SOURCES]


@needs_nvcc
@pytest.mark.parametrize(
    ("device", "host"),
    [("int unused = 1;", ""), ("*out = one;", ""), ("", "unsigned n = 1; int m = -1; if (m < n) return;")],
    ids=["warning", "error", "warning of the host"],
)
def test_the_gate_can_fail(device: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN_BUILD_DIR", str(tmp_path / "builds"))
    file = tmp_path / "k.cu"
    text = "__global__ void kernel(int* out) { *out = 0; DEVICE }\nvoid run() { HOST kernel<<<1, 1>>>(nullptr); }\n"
    file.write_text(text.replace("DEVICE", device).replace("HOST", host))
    with pytest.raises(BuildError, match=r"^compiling k\.cu for sm_90 failed: "):
        resources.compile_all([file], [90])
    file.write_text(text.replace("DEVICE", "").replace("HOST", ""))
    assert list(resources.compile_all([file], [90])[file]) == ["kernel"]


def test_a_kernel_file_reaches_no_header_of_pytorch() -> None:
    for path in (*SOURCES, *(ROOT / "kernels" / "cuda" / "include").iterdir()):
        included = re.findall(r'#include [<"]([^>"]+)', path.read_text(encoding="utf-8"))
        assert not [name for name in included if name.split("/")[0] in ("torch", "ATen", "c10")], path


MESSAGES = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN44_GLOBAL__N__c388a11d_11_rms_norm_cu_fe1b9de79norm_rowsI13__nv_bfloat16Li2ELb1EEEvT_' for 'sm_75'
ptxas info    : Function properties for _ZN44_GLOBAL__N__c388a11d_11_rms_norm_cu_fe1b9de79norm_rowsI13__nv_bfloat16Li2ELb1EEEvT_
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 16 bytes cumulative stack size, 8192 bytes smem, 440 bytes cmem[0]
ptxas info    : Compile time = 63.144 ms
ptxas info    : Compiling entry function 'plain' for 'sm_75'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""  # noqa: E501


def test_the_assemblers_messages_are_read() -> None:
    found = usages(MESSAGES)
    assert {name: tuple(usage.values()) for name, usage in found.items()} == {
        "norm_rows<bf16, 2, true>": (64, 8192, 16, 8, 12),
        "plain": (8, 0, 0, 0, 0),
    }


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_ZN12_GLOBAL__N_16kernelEPf", "kernel"),
        ("_ZN12_GLOBAL__N_14normIfLi4EEEvN4qwen7RmsNormE", "norm<fp32, 4>"),
        ("_ZN4qwen3addI6__halfEEvT_", "add<fp16>"),
        ("not_mangled", "not_mangled"),
    ],
)
def test_kernels_have_the_names_of_the_source(symbol: str, name: str) -> None:
    assert readable(symbol) == name
