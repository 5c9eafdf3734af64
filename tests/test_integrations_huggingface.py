"""Our operators in models of transformers: the results are theirs, and everything that a model can do goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from qwen3_ref.hub import TINY_DIR
from qwen_cuda.integrations.huggingface import is_patched, patch, patched_modules, unpatch
from qwen_cuda.testing.ulp import assert_same_bits
from tests.integrations_kit import CONFIGS, assert_near, count_calls, logits, make, tokens

pytestmark = pytest.mark.usefixtures("one_thread")
SWITCHES = ("rms_norm", "mlp", "add_rms_norm")
ALONE = [{name: name == one for name in SWITCHES} for one in SWITCHES]
families = pytest.mark.parametrize("family", CONFIGS)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each operator has run."""
    return count_calls(monkeypatch)


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "switches", [*ALONE, dict.fromkeys(SWITCHES, True)], ids=lambda s: "+".join(k for k in s if s[k])
)
def test_logits_stay_and_unpatching_restores_every_bit(
    family: str, dtype: torch.dtype, switches: dict[str, bool], calls: dict[str, int]
) -> None:
    model = make(family, dtype)
    ids = tokens(model)
    classes = [type(module) for module in model.modules()]
    keys = [sorted(vars(module)) for module in model.modules()]
    before = logits(model, ids)
    assert patch(model, **switches) is model
    assert_near(logits(model, ids), before, 64 if dtype == torch.float32 else 8)
    norms = (2 + 2 * (family == "qwen3")) * 3 + 1
    both = 3 * (switches["rms_norm"] and switches["add_rms_norm"])
    expected = {
        "rms_norm": norms * switches["rms_norm"] - both,
        "add_rms_norm": 3 * switches["add_rms_norm"],
        "silu_mul": 3 * switches["mlp"],
    }
    assert calls == expected
    assert unpatch(model) is model
    assert_same_bits(logits(model, ids), before)
    assert [type(module) for module in model.modules()] == classes
    assert [sorted(vars(module)) for module in model.modules()] == keys


def test_the_trained_checkpoint_computes_the_same_bits_in_hugging_faces_rounding() -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY_DIR, dtype=torch.bfloat16).eval()
    ids = tokens(model, 1, 24)
    before = logits(model, ids)
    after = logits(patch(model), ids)
    # bfloat16 hides the order of sums nearly everywhere; one step of the largest logit is left for the rest.
    assert_near(after, before, 1)
    single = logits(patch(unpatch(model), hf_rounding=False), ids)
    assert (after != before).float().mean() < 0.1 < (single != before).float().mean()


def test_patched_modules_are_counted_by_class() -> None:
    model = make()
    assert not is_patched(model)
    counts = {"FusedQwen3DecoderLayer": 3, "FusedQwen3RMSNorm": 13, "PackedQwen3MLP": 3}
    assert patched_modules(patch(model)) == counts
    assert is_patched(model)


@families
def test_parameters_keep_names_values_identity_and_memory(family: str) -> None:
    model = make(family)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    patch(model)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(parameters[name] is weight for name, weight in model.named_parameters())
    mlp = model.model.layers[0].mlp
    rows = mlp.gate_proj.weight.shape[0]
    for half, linear in ((slice(None, rows), mlp.gate_proj), (slice(rows, None), mlp.up_proj)):
        assert mlp.gate_up_weight[half].data_ptr() == linear.weight.data_ptr()
        assert torch.equal(mlp.gate_up_weight[half], linear.weight)
    unpatch(model)
    storages = [linear.weight.untyped_storage() for linear in (mlp.gate_proj, mlp.up_proj)]
    assert [storage.nbytes() for storage in storages] == [mlp.gate_proj.weight.nbytes] * 2


@families
def test_a_saved_model_loads_as_a_plain_one(family: str, tmp_path: Path) -> None:
    model = patch(make(family))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert not is_patched(again)
    assert_same_bits(logits(again, tokens(model)), logits(unpatch(model), tokens(model)))


@families
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_gives_the_same_tokens(family: str, cache: str) -> None:
    model = make(family)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "cache_implementation": cache}
    options |= {"disable_compile": True, "pad_token_id": 0}
    before = model.generate(tokens(model), **options)
    assert torch.equal(patch(model).generate(tokens(model), **options), before)


def test_a_padded_batch_gives_the_same_logits() -> None:
    model, mask = make(), torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    with torch.no_grad():
        before = model(tokens(model), attention_mask=mask).logits[mask.bool()]
        assert_near(patch(model)(tokens(model), attention_mask=mask).logits[mask.bool()], before)


@families
def test_the_whole_model_compiles_without_a_graph_break(family: str) -> None:
    model = patch(make(family, num_hidden_layers=1))
    ids = tokens(model)
    before = logits(model, ids)
    torch._dynamo.reset()
    assert_same_bits(logits(torch.compile(model, fullgraph=True, backend="aot_eager"), ids), before)


def test_hidden_states_and_attentions_are_those_of_the_model() -> None:
    model = make(attention="eager")
    options = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        before = model(tokens(model), **options)
        after = patch(model)(tokens(model), **options)
    for kind, count in (("hidden_states", 4), ("attentions", 3)):
        assert len(after[kind]) == len(before[kind]) == count
        for mine, theirs in zip(after[kind], before[kind], strict=True):
            assert_near(mine, theirs)


@pytest.mark.parametrize(
    "where", ["post_attention_layernorm", "input_layernorm", "mlp", "mlp.gate_proj", "mlp.up_proj", "mlp.act_fn"]
)
def test_a_hook_sees_what_it_saw_before(where: str) -> None:
    """Also on a module that ours does without: then transformers' own forward runs."""
    model, seen = make(), []
    model.model.layers[1].get_submodule(where).register_forward_hook(lambda module, args, out: seen.append(out))
    logits(model, tokens(model))
    logits(patch(model), tokens(model))
    theirs, mine = seen
    assert_near(mine, theirs)


def test_a_hook_that_changes_an_output_changes_the_result() -> None:
    model = make()
    model.model.layers[1].post_attention_layernorm.register_forward_hook(lambda module, args, out: 2 * out)
    before = logits(model, tokens(model))
    assert_near(logits(patch(model), tokens(model)), before)


def test_a_patched_model_can_be_patched_otherwise_after_unpatching(calls: dict[str, int]) -> None:
    model = patch(unpatch(patch(make())), rms_norm=False, add_rms_norm=False)
    logits(model, tokens(model))
    assert calls == {"rms_norm": 0, "add_rms_norm": 0, "silu_mul": 3}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
@families
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_gpu_gives_the_same_logits_and_unpatching_restores_them(family: str, dtype: torch.dtype) -> None:
    model = make(family, dtype).cuda()
    before = logits(model, tokens(model))
    assert_near(logits(patch(model), tokens(model)), before, 8)
    assert_same_bits(logits(unpatch(model), tokens(model)), before)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here")
def test_a_patched_model_moves_to_a_gpu_and_back() -> None:
    model = patch(make())
    before = logits(model, tokens(model))
    assert_near(logits(model.cuda(), tokens(model)).cpu(), before, 512)
    assert_near(logits(model.cpu(), tokens(model)), before)
