"""Plausible faults in kernels/cuda/paged_attention_split.cu and its headers, one at a time: the checks notice all."""

from __future__ import annotations

from typing import Literal

import pytest

from chapters.ch06_split_attention.split_checks import SPLIT_CHECKS
from qwen_cuda.testing.mutants import Mutant, MutantTrial, edit_of

pytestmark = pytest.mark.timeout(1800)  # all are built before the first test, on a busy machine in minutes
SOURCE = "paged_attention_split"

kernel = edit_of("paged_attention_split.cu")
cut = edit_of("partitions.h")
parts = edit_of("partition_merge.cuh")
softmax = edit_of("online_softmax.cuh")

MUTANTS = (
    # How a context is cut.
    Mutant(
        "page without the lane's offset",
        "All warps begin in the partition's first page.",
        kernel("head.block_of(begin + offset, end)", "head.block_of(begin, end)"),
    ),
    Mutant(
        "last partition cut short",
        "The end of a partition leaves one token out.",
        kernel("min(begin + tokens, context)", "min(begin + tokens, context - 1)"),
    ),
    Mutant(
        "partition reads beyond its end",
        "Tokens count in two partitions.",
        kernel("min(begin + tokens, context)", "min(begin + tokens + 4, context)"),
    ),
    Mutant(
        "last partition reads beyond the context",
        "Slots that nobody wrote are read.",
        kernel("min(begin + tokens, context)", "begin + tokens"),
    ),
    Mutant(
        "full partitions only",
        "The tokens after the last whole partition are lost.",
        kernel("(context - 1) / tokens + 1", "context / tokens"),
    ),
    Mutant(
        "one partition too many counted",
        "Where the context ends with a partition, the last block waits for one that has left.",
        kernel("(context - 1) / tokens + 1", "context / tokens + 1"),
    ),
    Mutant(
        "contexts beyond the grid are cut off",
        "A graph for short contexts forgets the end of long ones.",
        cut("if (context <= int64_t(partition_size) * partitions) return partition_size;", "return partition_size;"),
    ),
    Mutant(
        "share rounded down",
        "The grown partitions do not hold the whole context.",
        cut("(context - 1) / partitions + 1", "context / partitions"),
    ),
    Mutant(
        "partitions of any size",
        "A partition begins inside a run of tokens that a page boundary may cut.",
        cut("(share + kPartitionGrain - 1) / kPartitionGrain * kPartitionGrain", "share"),
    ),
    # Partials.
    Mutant(
        "empty partitions not marked",
        "The merge takes what the workspace held before.",
        parts("partials.m[at] = -INFINITY, partials.l[at] = 0.0f;", ""),
    ),
    Mutant(
        "empty partitions marked for one head",
        "The other heads of the group take what was there.",
        parts("if (threadIdx.x >= a.group) return;", "if (threadIdx.x >= 1) return;"),
    ),
    Mutant(
        "maximum without tokens is finite",
        "A partition of bad blocks does not say that it is empty.",
        softmax("l == 0.0f ? -INFINITY : m", "m"),
    ),
    Mutant(
        "partials of heads collide",
        "Heads are taken for partitions.",
        parts("return head * partials.partitions + of_partition;", "return head + int64_t(of_partition) * a.group;"),
    ),
    Mutant(
        "l of the first head for all",
        "Only thread 0 writes m and l.",
        parts("if (i % kHeadDim == 0) partials.m", "if (i == 0) partials.m"),
    ),
    Mutant(
        "o divided too early",
        "The partial is a mean already, and is weighed by l again.",
        parts(
            "partials.o[at * kHeadDim + i % kHeadDim] = total;",
            "partials.o[at * kHeadDim + i % kHeadDim] = all.quotient(total);",
        ),
    ),
    Mutant(
        "a single partition is not written",
        "Its result stays in shared memory.",
        kernel("if (live == 1) return end_of.finish_alone(shared);", "if (live == 1) return;"),
    ),
    Mutant(
        "context of nothing has no partition",
        "Nobody writes its zeros.",
        kernel("context == 0 ? 1 : (context - 1) / tokens + 1", "(context + tokens - 1) / tokens"),
    ),
    # Who comes last.
    Mutant(
        "counter not reset",
        "The second call finds the counter where the first left it.",
        parts("atomicInc(arrived, blocks - 1)", "atomicAdd(arrived, 1u)"),
    ),
    Mutant(
        "the first block merges",
        "The partials of the others are not there yet.",
        parts("== uint32_t(blocks - 1);", "== 0u;"),
    ),
    Mutant(
        "one counter for a sequence",
        "Blocks of several KV heads count together.",
        parts("partials.arrived + sequence * a.kv_heads + kv_head", "partials.arrived + sequence * a.kv_heads"),
    ),
    Mutant(
        "dead blocks are waited for",
        "The block that ends last waits for those that left at once.",
        parts("a.kv_heads + kv_head, live)", "a.kv_heads + kv_head, partials.partitions)"),
    ),
    Mutant(
        "merged by thread 0's block alone",
        "Only thread 0 learns that its block came last.",
        parts("return __syncthreads_or(last);", "__syncthreads();\n  return last;"),
    ),
    # The cluster.
    Mutant(
        "shares without the remainder",
        "The last results belong to nobody.",
        parts("(size + live - 1) / live", "size / live"),
    ),
    Mutant(
        "sent before it runs",
        "A block may not have begun when its shared memory is written.",
        parts("    cluster_wait();\n    for", "    for"),
    ),
    Mutant(
        "read before it arrives",
        "The second barrier of the cluster is missing.",
        parts("    cluster_arrive();\n    cluster_wait();\n", ""),
    ),
    Mutant(
        "all sent to the first block",
        "The shares of the others hold what was there before.",
        parts("const int to = i / part", "const int to = 0"),
    ),
    Mutant(
        "partials of the cluster collide",
        "Each block writes where the others write.",
        parts("at = partition * part + i % part", "at = i % share"),
    ),
    Mutant(
        "share written where the first one belongs",
        "Every block writes the first results.",
        parts("out[first + i] = from_float", "out[i] = from_float"),
    ),
    # The merge.
    Mutant(
        "merge over the grid",
        "Partials of partitions without tokens are merged, which nobody wrote.",
        parts(
            "merge_readers<kMergeBatch>(live, [&](int p) {\n        const int64_t at",
            "merge_readers<kMergeBatch>(int(partials.partitions), [&](int p) {\n        const int64_t at",
        ),
    ),
    Mutant(
        "partials unweighted",
        "Each counts in its own unit.",
        softmax("const float weight = all.weight(parts[j].m);", "const float weight = 1.0f;"),
    ),
    Mutant(
        "sum before not rescaled",
        "A later batch of partials has a larger maximum.",
        softmax("total *= all.raise(largest);", "all.raise(largest);"),
    ),
    Mutant(
        "second batch lost",
        "Beyond eight partitions nothing is merged.",
        softmax("first < count; first += kBatch", "first < 1; first += kBatch"),
    ),
    Mutant(
        "last partial lost",
        "The merge stops one too early.",
        softmax("for (int first = 0; first < count", "for (int first = 0, end = count--; first < end"),
    ),
    Mutant(
        "o of an empty partition used",
        "0 · NaN is NaN.",
        softmax("parts[j].l == 0.0f ? 0.0f : weight * parts[j].o", "weight * parts[j].o"),
    ),
    Mutant(
        "l added without its weight",
        "The denominator is too large.",
        softmax("all.l += weight * parts[j].l", "all.l += parts[j].l"),
    ),
    Mutant(
        "merge of heads one apart",
        "The separate merge reads the partials of the next head.",
        kernel("partials.o + at * head_dim + threadIdx.x", "partials.o + at + threadIdx.x"),
    ),
    Mutant(
        "rows counted by sequences",
        "The separate merge skips rows and writes others twice.",
        kernel("int64_t(blockIdx.y) * gridDim.x", "int64_t(blockIdx.y) * gridDim.y"),
    ),
)


@pytest.fixture(scope="module")
def trial() -> MutantTrial:
    return MutantTrial(SOURCE, MUTANTS, SPLIT_CHECKS)


@pytest.mark.parametrize(("variant", "seed"), [("plain", 1), ("plain", 2), ("checked", 0)])
def test_split_attention_as_it_is_passes(trial: MutantTrial, variant: Literal["plain", "checked"], seed: int) -> None:
    assert trial.noticed(Mutant("none", "Nothing.", (), variant, (seed,))) is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_split_mutant_is_caught(mutant: Mutant, trial: MutantTrial, tally: list[str]) -> None:
    tally.append(trial.catch(mutant))
