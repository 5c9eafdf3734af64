"""The lesson's quotations are what kernels, operator and exercise really do and say, and its counts are right."""

from __future__ import annotations

import re
from typing import Any

import torch

from chapters.ch07_decode_gemv import faults
from chapters.ch07_decode_gemv.candidates import LAYERS, work
from qwen_cuda.operators import decode_linear
from qwen_cuda.testing.quotations import filled

READ_TBPS, TENSOR_TFLOPS, FP32_TFLOPS, LATENCY_US, SMS = 4.8, 989, 67, 0.6, 132  # of an H200, as the lesson has them
TITLES = {"qkv": "QKV", "o": "O", "gate_up": "gate/up", "down": "down", "head": "head"}


def linear_lesson() -> str:
    return " ".join(faults.LESSON.read_text(encoding="utf-8").split())


def test_lesson_of_linear_layers_quotes_every_report_word_for_word() -> None:
    text, reports = faults.LESSON.read_text(encoding="utf-8"), faults.reports()
    assert set(re.findall(r"<!-- report: ([\w-]+) -->", text)) == set(reports)
    assert filled(text, reports) == text, "run `python -m chapters.ch07_decode_gemv.faults sync`"
    for name, said in reports.items():
        assert not re.search(r"0x[0-9a-f]{9,}|/home/|/tmp/", said), name


def test_a_forgotten_factor_shows_in_rows_whose_size_is_not_one_alone() -> None:
    weight, gain = faults.numbers(4, 64, seed=1), torch.ones(64).bfloat16()
    row = faults.numbers(1, 64).float()
    row /= row.square().mean().sqrt()
    for factor in (1.0, 4.0):
        given: dict[str, Any] = {"norm_weight": gain, "silu_mul": True, "out_dtype": torch.float32}
        wrong = faults.run(faults.FAULTS["up is not normed"].library, factor * row, weight, **given)
        ratio = wrong / decode_linear(factor * row, weight, **given)
        torch.testing.assert_close(ratio, torch.full_like(ratio, factor), rtol=1e-4, atol=0)


def test_lesson_of_linear_layers_counts_bytes_as_the_benchmark_does() -> None:
    text, layer_bytes = linear_lesson(), 0
    for layer in LAYERS:
        nbytes = work(layer).bytes
        layer_bytes += nbytes if layer.op != "head" else 0
        row = rf"\| {TITLES[layer.op]} \|[^|]*\| {layer.n:,} × {layer.k:,} \| {nbytes / 1e6:.2f} MB "
        assert re.search(row + rf"\| {nbytes / READ_TBPS / 1e6:.2f} µs \|", text), layer.op
    layer_us = layer_bytes / READ_TBPS / 1e6
    assert f"The four of a layer are {layer_us:.2f} µs, those of 28 layers {28 * layer_us / 1e3:.2f} ms" in text


def test_lesson_of_linear_layers_counts_the_roof_and_what_is_on_its_way() -> None:
    text = linear_lesson()
    assert f"turns at about {TENSOR_TFLOPS / READ_TBPS:.0f} flop a byte" in text
    assert f"with {FP32_TFLOPS} Tflop/s, for {READ_TBPS / FP32_TFLOPS:.0%}.".replace("%", " %") in text
    assert f"{8 * READ_TBPS / FP32_TFLOPS:.0%} of what they can".replace("%", " %") in text
    needed = READ_TBPS * LATENCY_US * 1e6 / SMS
    assert f"{needed / 1024:.0f} KiB for each of {SMS} SMs" in text
    assert f"8 KiB on their way to an SM, {8 * 1024 / needed:.0%} of".replace("%", " %") in text
