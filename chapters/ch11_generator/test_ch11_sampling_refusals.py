"""What `sample_tokens` refuses, each by its sentence, and what it accepts although it looks odd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chapters.ch11_generator.sampling_checks import PARAMETERS, Draws, drawn, normal
from qwen_cuda.testing.backends import Backend

SOME = Draws(normal(2, 70))
LOGITS, SEEN = SOME.logits, SOME.seen()


def call(backend: Backend, **changed: Any) -> Tensor:
    """The operator on two rows of 70 logits, `changed` in place of its own arguments."""
    given: dict[str, Tensor] = {"logits": LOGITS, **SOME.parameters(), "seen": SEEN, **changed}
    placed = {
        name: torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=backend.device).copy_(one)
        if backend.device.type != "cpu"
        else one
        for name, one in given.items()
    }
    result: Tensor = backend.namespace.sample_tokens(**placed)
    return result


CASES: list[tuple[dict[str, Tensor], str]] = [
    ({"logits": LOGITS.half()}, "logits has dtype Half; it must be float32."),
    ({"logits": LOGITS.double()}, "logits has dtype Double; it must be float32."),
    ({"logits": LOGITS[0]}, "logits has shape [70]; it must be [batch, vocabulary]."),
    ({"logits": LOGITS[None]}, "logits has shape [1, 2, 70]; it must be [batch, vocabulary]."),
    ({"logits": torch.ones(9, 70)}, "logits has shape [9, 70]; at most 8 rows are supported."),
    ({"logits": torch.ones(2, 0)}, "logits has shape [2, 0]; a row must have 1 to 1048576 logits."),
    ({"logits": torch.ones(1, 2**20 + 1)}, "logits has shape [1, 1048577]; a row must have 1 to 1048576 logits."),
    ({"logits": torch.ones(70, 2).t()}, "logits has gaps or another layout; pass logits.contiguous()."),
    ({"logits": torch.ones(2, 80)[:, :70]}, "logits has gaps or another layout; pass logits.contiguous()."),
    ({"temperature": torch.ones(2).double()}, "temperature has dtype Double; it must be float32."),
    ({"temperature": torch.ones(3)}, "temperature has shape [3]; it must be [2], one for each row of logits."),
    ({"top_k": torch.ones(2).long()}, "top_k has dtype Long; it must be int32."),
    ({"top_k": torch.ones(2, 1).int()}, "top_k has shape [2, 1]; it must be [2], one for each row of logits."),
    ({"top_p": torch.ones(4)[::2]}, "top_p has gaps or another layout; pass top_p.contiguous()."),
    ({"min_p": torch.tensor(0.1)}, "min_p has shape []; it must be [2], one for each row of logits."),
    ({"repetition_penalty": torch.ones(2).half()}, "repetition_penalty has dtype Half; it must be float32."),
    ({"seeds": torch.ones(2).int()}, "seeds has dtype Int; it must be int64."),
    ({"draws": torch.ones(1).long()}, "draws has shape [1]; it must be [2], one for each row of logits."),
    ({"seen": SEEN.long()}, "seen has dtype Long; it must be int32."),
    ({"seen": SEEN[:, :2].contiguous()}, "seen has shape [2, 2]; it must be [2, 3], one bit for each logit: qwen_cuda"),
    ({"seen": SEEN[:1]}, "seen has shape [1, 3]; it must be [2, 3], one bit for each logit"),
    ({"seen": torch.zeros(3, 2).int().t()}, "seen has gaps or another layout; pass seen.contiguous()."),
]


@pytest.mark.parametrize(("changed", "sentence"), CASES, ids=[case[1][:60] for case in CASES])
def test_arguments_of_sampling_are_refused(
    registered_backend: Backend, changed: dict[str, Tensor], sentence: str
) -> None:
    with pytest.raises(RuntimeError) as failure:
        call(registered_backend, **changed)
    assert str(failure.value).startswith(f"sample_tokens: {sentence}"), failure.value


@pytest.mark.parametrize("name", ["logits", *PARAMETERS])
def test_an_input_that_is_part_of_seen_is_refused(registered_backend: Backend, name: str) -> None:
    memory = torch.zeros(200, dtype=torch.int64, device=registered_backend.device)
    given = {key: one.to(memory.device) for key, one in {"logits": LOGITS, **SOME.parameters()}.items()}
    like = given[name]
    given[name] = memory.view(like.dtype)[: like.numel()].view(like.shape)
    with pytest.raises(RuntimeError, match=f"seen and {name} share memory; seen is written"):
        registered_backend.namespace.sample_tokens(**given, seen=memory.view(torch.int32)[:6].view(2, 3))


@pytest.mark.parametrize("name", ["logits", "temperature"])
def test_sampling_has_no_gradient_and_says_so(registered_backend: Backend, name: str) -> None:
    given = {"logits": LOGITS, **SOME.parameters()}
    wanted = given[name].to(registered_backend.device, copy=True).requires_grad_()
    with pytest.raises(RuntimeError, match=r"sample_tokens: an argument requires a gradient.*torch.no_grad"):
        call(registered_backend, **{name: wanted})


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")
def test_the_simulator_refuses_logits_on_a_gpu() -> None:
    import qwen_cuda.operators  # noqa: F401  registers torch.ops.qwen_sim

    given = {name: one.cuda() for name, one in {"logits": LOGITS, **SOME.parameters(), "seen": SEEN}.items()}
    with pytest.raises(RuntimeError, match=r"^sample_tokens: logits is on cuda:0; the simulator runs on the CPU"):
        torch.ops.qwen_sim.sample_tokens(**given)


def test_one_row_may_have_any_stride(registered_backend: Backend) -> None:
    """PyTorch counts it as contiguous."""
    logits = torch.ones(1, 80)[:, :70]
    odd = Draws(logits.as_strided((1, 70), (80, 1)), top_k=3)
    assert drawn(registered_backend, odd) == drawn(registered_backend, Draws(torch.ones(1, 70), top_k=3))
