"""What split attention and the merge refuse beside what chapter 5's tests hold, each by its sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qwen_cuda.attention_workspace import WorkspaceLayout
from qwen_cuda.testing.backends import Backend
from qwen_cuda.testing.guards import placed

LAYOUT = WorkspaceLayout(batch=2, query_heads=4, kv_heads=2, head_dim=64, partitions=3)
SPLITS = ("paged_attention_split", "paged_attention_partials")


def arguments(**changes: Any) -> list[Any]:
    given = {
        "q": torch.zeros(2, 4, 64).bfloat16(),
        "k_cache": torch.zeros(3, 8, 2, 64).bfloat16(),
        "v_cache": torch.zeros(3, 8, 2, 64).bfloat16(),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "context_lens": torch.ones(2, dtype=torch.int32),
        "scale": 1.0,
        "partition_size": 16,
        "partitions": 3,
        "workspace": LAYOUT.new("cpu"),
    }
    return list((given | changes).values())


def on(backend: Backend, given: list[Any]) -> list[Any]:
    tensors = iter(placed([x for x in given if isinstance(x, Tensor)], backend.device))
    return [next(tensors) if isinstance(x, Tensor) else x for x in given]


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("size 0", {"partition_size": 0}, "partition_size is 0; it must be a multiple of 16."),
    ("size 24", {"partition_size": 24}, "partition_size is 24; it must be a multiple of 16."),
    ("size -16", {"partition_size": -16}, "partition_size is -16; it must be a multiple of 16."),
    ("no partition", {"partitions": 0}, "partitions is 0; it must be 1 to 65535."),
    ("many partitions", {"partitions": 65536}, "partitions is 65536; it must be 1 to 65535."),
    (
        "beyond 32 bits",
        {"partition_size": 2**29},
        "partition_size is 536870912 and partitions 3; their product must be at most 1073741824.",
    ),
    (
        "workspace too short",
        {"workspace": LAYOUT.new("cpu")[:-1]},
        "workspace has 1587 elements; it must have 1588: qwen",
    ),
    (
        "workspace of bfloat16",
        {"workspace": LAYOUT.new("cpu").bfloat16()},
        "workspace has dtype BFloat16 and strides [1];",
    ),
    (
        "workspace with gaps",
        {"workspace": torch.zeros(2 * LAYOUT.size)[::2]},
        "workspace has dtype Float and strides [2];",
    ),
    (
        "unaligned",
        {"workspace": torch.zeros(LAYOUT.size + 1)[1:]},
        "workspace does not begin at a multiple of 16 bytes",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_argument_of_a_split_is_refused(registered_backend: Backend, changes: dict[str, Any], sentence: str) -> None:
    for name in SPLITS:
        with pytest.raises(RuntimeError) as failure:
            getattr(registered_backend.namespace, name)(*on(registered_backend, arguments(**changes)))
        assert str(failure.value).startswith(f"{name}: {sentence}"), str(failure.value)


def test_a_workspace_that_is_also_an_input_is_refused(registered_backend: Backend) -> None:
    shared = torch.zeros(LAYOUT.size + 4096, device=registered_backend.device)
    given = on(registered_backend, arguments())
    for place, (name, shape) in enumerate((("q", (2, 4, 64)), ("k_cache", (3, 8, 2, 64)), ("v_cache", (3, 8, 2, 64)))):
        inside = shared.view(torch.bfloat16)[: torch.Size(shape).numel()]
        changed = [*given]
        changed[place], changed[8] = inside.view(shape), shared
        with pytest.raises(
            RuntimeError, match=f"^paged_attention_split: workspace and {name} share memory; workspace is"
        ):
            registered_backend.namespace.paged_attention_split(*changed)


@pytest.mark.parametrize(
    ("out", "partitions", "sentence"),
    [
        (torch.zeros(2, 4, 64), 3, "out has dtype Float; it must be bfloat16 or float16."),
        (
            torch.zeros(2, 4, 32).bfloat16(),
            3,
            "out has shape [2, 4, 32] and strides [128, 32, 1]; it must be dense and",
        ),
        (torch.zeros(2, 4, 128).bfloat16()[..., :64], 3, "out has shape [2, 4, 64] and strides [512, 128, 1]; it must"),
        (torch.zeros(8, 64).bfloat16(), 3, "out has shape [8, 64] and strides [64, 1]; it must be dense and [batch,"),
        (torch.zeros(2, 4, 64).bfloat16(), 0, "partitions is 0; it must be 1 to 65535."),
        (torch.zeros(2, 4, 64).bfloat16(), 4, "workspace has 1588 elements; it must have 2112: qwen_cuda.operators."),
    ],
    ids=["float32", "head_dim 32", "gaps", "two dimensions", "no partition", "too many partitions"],
)
def test_an_argument_of_the_merge_is_refused(
    registered_backend: Backend, out: Tensor, partitions: int, sentence: str
) -> None:
    workspace, given = on(registered_backend, [LAYOUT.new("cpu"), out])
    given = given if out.is_contiguous() else torch.zeros(2, 4, 128, device=given.device).bfloat16()[..., :64]
    with pytest.raises(RuntimeError) as failure:
        registered_backend.namespace.merge_partitions(workspace, given, partitions)
    assert str(failure.value).startswith(f"merge_partitions: {sentence}"), str(failure.value)


def test_a_merge_of_no_sequence_is_no_work(registered_backend: Backend) -> None:
    workspace, out = on(registered_backend, [torch.zeros(0), torch.zeros(0, 4, 64).bfloat16()])
    registered_backend.namespace.merge_partitions(workspace, out, 3)


@pytest.mark.parametrize("name", SPLITS)
def test_opcheck_of_a_split(registered_backend: Backend, name: str) -> None:
    given = on(registered_backend, arguments())
    torch.library.opcheck(
        getattr(registered_backend.namespace, name).default,
        tuple(given),
        test_utils=["test_schema", "test_faketensor", "test_autograd_registration"],
    )


def test_opcheck_of_the_merge(registered_backend: Backend) -> None:
    given = on(registered_backend, [LAYOUT.new("cpu"), torch.zeros(2, 4, 64).bfloat16()])
    torch.library.opcheck(
        registered_backend.namespace.merge_partitions.default,
        (*given, 3),
        test_utils=["test_schema", "test_faketensor", "test_autograd_registration"],
    )
