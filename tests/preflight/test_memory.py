"""Memory: what is estimated is what a real model allocates; and plans that cannot be used."""

import pytest
import torch

import tracker_diag as td
from tracker_diag.errors import DiagError
from tracker_diag.preflight.memory import GIB, Model, estimate, ladder, memory_check, plan_of

SHAPE = {
    "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip


def allocated(model, optimizer):
    """Bytes of parameters, gradients and optimiser states, each storage once, after a real step."""
    ids = torch.randint(0, 1000, (2, 16))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    held = [*model.parameters(), *(one.grad for one in model.parameters() if one.grad is not None)]
    held += [value for of in optimizer.state.values() for value in of.values() if torch.is_tensor(value)]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}.values())


def real(shape, dtype=torch.float32, kind="Qwen2"):
    import transformers

    config = getattr(transformers, f"{kind}Config")(**shape)
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype)


def estimated(**plan):
    return sum(estimate(plan_of({"device_gib": 1, "actor": SHAPE} | plan)).values()) * GIB


@pytest.mark.by_day("dtype0-float32-adam-Qwen2", "dtype1-bfloat16-adam-Llama", "dtype2-float32-sgd-Mistral")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Qwen2", "Llama", "Mistral"])
@pytest.mark.parametrize(
    ("dtype", "precision", "optimizer"),
    [(torch.float32, "float32", "adam"), (torch.bfloat16, "bfloat16", "adam"), (torch.float32, "float32", "sgd")],
)
def test_states_are_those_of_a_real_model(kind, dtype, precision, optimizer):
    model = real(SHAPE, dtype, kind)
    make = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer]
    held = allocated(model, make(model.parameters(), lr=1e-4))
    assert estimated(precision=precision, optimizer=optimizer) == pytest.approx(held, rel=0.05)


@pytest.mark.slow
def test_embeddings_that_are_tied_count_once():
    model = real(SHAPE | {"tie_word_embeddings": True})
    assert Model(**SHAPE | {"tie_word_embeddings": True}).size == pytest.approx(model.num_parameters(), rel=0.02)
    assert estimated(actor=SHAPE | {"tie_word_embeddings": True}, precision="float32") == pytest.approx(
        allocated(model, torch.optim.AdamW(model.parameters())), rel=0.05
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_lora_trains_what_peft_trains():
    import peft

    model = peft.get_peft_model(real(SHAPE), peft.LoraConfig(r=8, target_modules="all-linear"))
    trained = [one for one in model.parameters() if one.requires_grad]
    assert Model(**SHAPE).adapters(8) == sum(one.numel() for one in trained)
    held = allocated(model, torch.optim.AdamW(trained, lr=1e-4))
    assert estimated(precision="float32", lora_rank=8) == pytest.approx(held, rel=0.05)


def test_sixteen_bytes_a_parameter_in_mixed_precision_and_what_zero_divides():
    def gib(**plan):
        return sum(estimate(plan_of({"device_gib": 1, "actor": 1e9, "devices": 64} | plan)).values()) * GIB / 1e9

    # The first figure of the ZeRO paper, for 7.5 billion parameters and 64 devices: 120, 31.4, 16.6 and 1.9 GB.
    assert gib() * 7.5 == pytest.approx(120)
    assert gib(sharding="zero1") * 7.5 == pytest.approx(31.4, abs=0.05)
    assert gib(sharding="zero2") * 7.5 == pytest.approx(16.6, abs=0.05)
    assert gib(sharding="zero3") * 7.5 == gib(sharding="fsdp") * 7.5 == pytest.approx(1.9, abs=0.05)


def test_all_models_count_and_frozen_ones_by_their_weights_alone():
    parts = estimate(plan_of({"device_gib": 80, "actor": 1e9, "critic": 1e9, "reference": 1e9, "reward": 5e8}))
    assert parts["critic optimizer"] == parts["actor optimizer"] == pytest.approx(12e9 / GIB)
    assert parts["reference weights"] == pytest.approx(2e9 / GIB)
    assert parts["reward weights"] == pytest.approx(1e9 / GIB)
    assert not any(name.startswith(("reference", "reward")) and "weights" not in name for name in parts)


@pytest.mark.by_day("8-dtype0-float32-Qwen2", "2-dtype1-bfloat16-Llama")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Qwen2", "Llama"])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
@pytest.mark.parametrize("heads", [8, 2])
def test_activations_are_within_15_per_cent_of_what_a_real_model_keeps_for_its_backward_pass(
    kind, dtype, precision, heads
):
    shape = SHAPE | {"hidden_size": 256, "intermediate_size": 704, "vocab_size": 2000, "num_key_value_heads": heads}
    model, ids = real(shape, dtype, kind), torch.randint(0, 1000, (2, 256))
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no other gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=ids, labels=ids)
    plan = plan_of({"device_gib": 1, "actor": shape, "length": 256, "micro_batch": 2, "precision": precision})
    assert estimate(plan)["activations"] * GIB == pytest.approx(sum(size for size, _ in kept.values()), rel=0.15)


def test_activations_grow_with_tokens_and_shrink_by_checkpointing():
    def activations(**plan):
        given = {"device_gib": 1, "actor": SHAPE, "length": 512, "micro_batch": 4} | plan
        return estimate(plan_of(given)).get("activations", 0.0)

    assert activations(micro_batch=8) == pytest.approx(2 * activations())
    assert activations(checkpointing=True) < 0.7 * activations()
    assert activations(length=0) == activations(actor=1e9) == 0.0
    assert activations(critic=SHAPE) == activations()


BIG = {"device_gib": 80, "devices": 8, "actor": SHAPE | {"hidden_size": 4096, "num_hidden_layers": 48}, "length": 8192,
       "micro_batch": 4, "reference": 8e9}  # fmt: skip


def test_each_rung_of_the_ladder_needs_less_and_the_first_that_fits_is_the_last_told():
    sizes = [sum(estimate(rung).values()) for _, rung in ladder(plan_of(BIG))]
    assert sizes == sorted(sizes, reverse=True)
    check = memory_check(BIG)
    assert check.status == "fail"
    assert check.do.startswith("it fits with: micro_batch 1 with accumulation (")
    fits = next(size for size in sizes if size <= 72)
    assert check.do.endswith(f"({fits:.3g} GiB)")


def test_a_ladder_does_not_name_what_is_done_already():
    names = [name for name, _ in ladder(plan_of(BIG | {"sharding": "fsdp", "checkpointing": True, "micro_batch": 1}))]
    assert names == ["8-bit Adam", "LoRA of rank 16, the actor as its own reference"]
    done = BIG | {"sharding": "zero2", "optimizer": "sgd", "lora_rank": 4, "sampler_gib": 30}
    assert [name for name, _ in ladder(plan_of(done))][-2:] == [
        "ZeRO 3 or FSDP",
        "the sampler asleep while training goes on",
    ]


def test_what_never_fits_is_said_to():
    assert memory_check({"device_gib": 1, "actor": 1e12}).do.startswith("not even 8-bit Adam (")
    assert memory_check({"device_gib": 1, "actor": 1e12, "optimizer": "sgd"}).do == "a larger device"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({}, "memory: device_gib: Field required"),
        ({"device_gib": 0, "actor": 1e9}, "memory: device_gib: Input should be greater than 0"),
        ({"device_gib": 80, "actor": -1}, "memory: actor.parameters: Input should be greater than 0"),
        ({"device_gib": 80, "actor": {}}, "memory: a model without parameters or shape given"),
        ({"device_gib": 80, "actor": 1e9, "sharding": "zero4"}, "memory: sharding: Input should be 'none'"),
        ({"device_gib": 80, "actor": 1e9, "gpus": 8}, "memory: gpus: Extra inputs"),
        ({"device_gib": 80, "actor": 1e9, "lora_rank": 8}, "memory: a model without parameters or shape given"),
        ({"device_gib": float("nan"), "actor": 1e9}, "memory: device_gib"),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused(plan, message):
    with pytest.raises(DiagError) as error:
        td.preflight(memory=plan)
    assert str(error.value).startswith(message)
