"""What attention adds to a decoder layer, and the plans of fused attention for one sequence that follow from it.

    python -m chapters.ch06_split_attention.in_a_layer [--device cuda] [--output FILE] [--quick]

28 layers of linear products in one CUDA graph, with attention and without. Alone in a graph a kernel that reads ahead
meets only its like. Here its neighbours are the products of a layer of Qwen3-0.6B, by `decode_linear`, each waiting for
the one before; without attention O reads what QKV wrote. A case's time is that of one layer, and attention's share the
difference of two medians. All ways to attend must agree. The fastest of each context goes into `dispatch.json`, unless
the run is a quick one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from chapters.ch05_grouped_attention.candidates import BLOCK_SIZE, Shape
from chapters.ch06_split_attention import plan_table
from chapters.ch06_split_attention.candidates import layout
from chapters.ch06_split_attention.dispatch import IN_ONE_TURN, Merge, Plan, Row, architecture, write_table
from chapters.ch06_split_attention.fused_candidates import EPS, THETA
from chapters.ch06_split_attention.targets import FUSED_OP
from qwen_cuda.benchmarking import Report, arguments, results_path
from qwen_cuda.benchmarking.graphs import graph_timing
from qwen_cuda.benchmarking.report import Case
from qwen_cuda.benchmarking.timing import Quantiles
from qwen_cuda.building import BuildError
from qwen_cuda.loading import load_operators
from qwen_cuda.operators import cos_sin_table

RESULTS, OP, LAYERS = "ch06_in_a_layer", "decoder_layer", 28
CONTEXTS = tuple(sorted({*plan_table.CONTEXTS, 192, 384, 1152, 1536}))
TURN, TWO_TURNS = 128, 144  # a block takes 128 tokens at a time; for larger partitions it asks for two turns ahead
TARGETS_US = {128: 2.7, 1024: 4.0, 8192: 11.5}
WEIGHTS = {"qkv": (4096, 1024), "o": (1024, 2048), "gate_up": (6144, 1024), "down": (1024, 3072)}
Attend = Callable[[int, Tensor], Tensor]  # layer, qkv -> [1, 2048]


class Layers:
    """Random weights and caches of all layers, for one sequence of `context` tokens, the last of which is new."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.generator = device, torch.Generator(device).manual_seed(1)
        self.weights = [{name: self.normal(*size) * 0.02 for name, size in WEIGHTS.items()} for _ in range(LAYERS)]
        self.norm, self.head_norm = (torch.ones(size, dtype=torch.bfloat16, device=device) for size in (1024, 128))
        self.x = self.normal(1, 1024).float()
        self.qkv = self.normal(1, WEIGHTS["qkv"][0])

    def normal(self, *size: int) -> Tensor:
        return torch.randn(size, device=self.device, generator=self.generator).bfloat16()

    def reach(self, context: int) -> None:
        """Caches of that length."""
        self.shape, pages = Shape(context), -(-context // BLOCK_SIZE)
        size = (pages, BLOCK_SIZE, self.shape.kv_heads, self.shape.head_dim)
        self.caches = [(self.normal(*size), self.normal(*size)) for _ in range(LAYERS)]
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(1))
        self.table = order.int().to(self.device)[None]
        self.lens = torch.tensor([context], dtype=torch.int32, device=self.device)
        self.positions = self.lens - 1
        self.slots = self.table[:, -1] * BLOCK_SIZE + self.positions % BLOCK_SIZE
        self.token = (self.head_norm, self.head_norm, cos_sin_table(context, THETA, self.device), self.positions)

    def run(self, attend: Attend | None) -> Tensor:
        """All layers; every product reads its weights ahead."""
        linear = partial(torch.ops.qwen_cuda.decode_linear, eps=EPS, prefetch=True)
        x = self.x
        for layer, weights in enumerate(self.weights):
            qkv = linear(x, weights["qkv"], norm_weight=self.norm)
            attended = qkv[:, :2048] if attend is None else attend(layer, qkv)
            x = linear(attended, weights["o"], residual=x, out_dtype=torch.float32)
            product = linear(x, weights["gate_up"], norm_weight=self.norm, silu_mul=True)
            x = linear(product, weights["down"], residual=x, out_dtype=torch.float32)
        return x

    def attended(self, attend: Attend) -> Tensor:
        """One row of QKV in each layer's context. → `[LAYERS, 2048]`."""
        return torch.cat([attend(layer, self.qkv) for layer in range(LAYERS)])

    def fused(self, plan: Plan, merge: Merge, prefetch: bool) -> Attend:
        workspace = layout(self.shape, plan).new(self.device)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            where = (self.slots, *self.caches[layer], self.table, self.lens)
            sizes = (EPS, self.shape.scale, self.shape.query_heads, plan.partition_size, plan.partitions, workspace)
            run = torch.ops.qwen_cuda.fused_decode_attention
            out: Tensor = run(qkv, *self.token, *where, *sizes, merge=merge, prefetch=prefetch)
            return out.flatten(1)

        return attend

    def in_turn(self, plan: Plan) -> Attend:
        workspace, ops = layout(self.shape, plan).new(self.device), torch.ops.qwen_cuda

        def attend(layer: int, qkv: Tensor) -> Tensor:
            caches = self.caches[layer]
            q, _ = ops.qk_norm_rope_cache_write(qkv, *self.token, self.slots, *caches, EPS, self.shape.query_heads)
            where = q, *caches, self.table, self.lens, self.shape.scale
            cut = plan.partition_size, plan.partitions, workspace
            out: Tensor = ops.paged_attention_split(*where, *cut, merge="last_block")
            return out.flatten(1)

        return attend


def plans(context: int) -> Iterator[tuple[Plan, Merge]]:
    """What is tried: one partition, clusters, blocks merged by the last. Two turns ahead where a block has as many."""
    if context <= 512:
        for size in IN_ONE_TURN:
            yield Plan(size, 1), "auto"
    for count in (2, 4, 8, 16):
        size = max(16, -(-context // count // 16) * 16)
        if count * 16 <= context:
            plan = Plan(size if size <= TURN else TWO_TURNS, count)
            yield plan, "cluster"
            yield plan, "last_block"
    if 8 * TURN < context < 16 * TURN:
        yield Plan(TURN, 16), "last_block"  # whole turns, and blocks that leave


def name_of(plan: Plan, merge: Merge) -> str:
    return f"{plan.partitions} × {plan.partition_size}, {merge}"


def check(layers: Layers, plan: Plan, name: str, attend: Attend) -> None:
    """Compares with the two operators in turn.

    Raises:
        RuntimeError: more than roundings lie between the results: two to bfloat16, of half an ulp each, and those of
            sums in fp32, which matter where values cancel.
    """
    got, expected = (layers.attended(way).float() for way in (attend, layers.in_turn(plan)))
    if not torch.allclose(got, expected, rtol=2.0**-7, atol=2.0**-14):
        tokens = layers.shape.context
        raise RuntimeError(f"{tokens} tokens, {name}: the fused operator differs from the two that it joins.")


def measure(report: Report, layers: Layers, context: int) -> None:
    """Checks that all ways agree for the same plan, times them, and adds a case for each."""
    layers.reach(context)
    ways: dict[str, Attend | None] = {"without attention": None}
    for plan, merge in plans(context):
        name = name_of(plan, merge)
        ways[name] = attend = layers.fused(plan, merge, True)
        check(layers, plan, name, attend)
    plan = max((plan for plan, _ in plans(context)), key=lambda one: one.partitions)
    ways["in turn"] = layers.in_turn(plan)
    ways["without reading ahead"] = layers.fused(plan, "last_block", False)
    calls = {name: [partial(layers.run, attend)] for name, attend in ways.items()}
    # All layers together overflow the second-level cache: each graph finds it cold.
    for name, us in graph_timing(calls, report.device, again=True).items():
        one = Quantiles(*(value / LAYERS for value in (us.p10, us.median, us.p90)))
        read = 2 * sum(n * k for n, k in WEIGHTS.values())
        if ways[name] is not None:
            read += 4 * context * layers.shape.kv_heads * layers.shape.head_dim
        shape: dict[str, int | str] = {"context": context, "heads": layers.shape.heads}
        report.add(Case(OP, name, shape, "bfloat16", "cold", bytes=read, nodes=4 + (ways[name] is not None), us=one))


def marginal_us(results: dict[str, object], context: int) -> tuple[str, float] | None:
    """The fastest way to attend, and what it adds to a layer; None where it was not measured."""
    cases = results["cases"]
    assert isinstance(cases, list)
    times = {c["variant"]: float(c["us"]["median"]) for c in cases if c["shape"]["context"] == context}
    base = times.pop("without attention", None)
    if base is None or not times:
        return None
    name = min(times, key=times.__getitem__)
    return name, times[name] - base


def best(report: Report, context: int, kv_heads: int) -> Row:
    """Of the plans that were timed in a layer the fastest."""
    times = {c.variant: c.us.median for c in report.cases if c.shape["context"] == context and c.us}
    plan, merge = min(plans(context), key=lambda one: times[name_of(*one)])
    return Row(kv_heads, context, plan.partition_size, plan.partitions, FUSED_OP, merge)


def main(argv: list[str] | None = None) -> int:
    options = arguments(__doc__.partition("\n")[0], argv)
    if options.device.type != "cuda":
        print("a layer is measured on a GPU: the simulator knows no time.", file=sys.stderr)
        return 2
    try:
        load_operators()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    report = Report(RESULTS, options.device, options.quick)
    rows: list[Row] = []
    with torch.inference_mode():
        layers = Layers(options.device)
        for context in CONTEXTS[:1] if options.quick else CONTEXTS:
            measure(report, layers, context)
            if not options.quick:
                rows.append(best(report, context, layers.shape.kv_heads))
    report.print()
    for context, target in TARGETS_US.items():
        if found := marginal_us(report.to_dict(), context):
            print(f"{context:,} tokens: {found[0]} adds {found[1]:.2f} µs to a layer; the target was {target} µs.")
    if path := results_path(report, options.output):
        report.save(path)
        print(f"wrote {path}")
    if rows:
        write_table(architecture(options.device), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
