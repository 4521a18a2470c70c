"""Memory: what is estimated is what a real model allocates; and plans that cannot be used."""

import pytest
import torch

import tracker_diag as td
from tracker_diag.errors import DiagError
from tracker_diag.preflight.memory import GIB, Model, estimate, ladder, memory_check, plan_from

SHAPE = {
    "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip


def allocated(model, optimizer):
    """Bytes of parameters, gradients and optimiser states, each storage once, after a real step."""
    ids = torch.randint(0, 1000, (2, 16))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    held = [*model.parameters(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
    held += [value for part in optimizer.state.values() for value in part.values() if torch.is_tensor(value)]
    return sum(
        {parameter.untyped_storage().data_ptr(): parameter.untyped_storage().nbytes() for parameter in held}.values()
    )


def real(shape, dtype=torch.float32, kind="Qwen2"):
    import transformers

    config = getattr(transformers, f"{kind}Config")(**shape)
    return getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype)


def estimated(**plan):
    return sum(estimate(plan_from({"device_gib": 1, "actor": SHAPE} | plan)).values()) * GIB


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


QWEN3_30B_A3B = {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


def test_all_experts_of_a_mixture_are_held():
    assert Model(**QWEN3_30B_A3B).size == pytest.approx(30.53e9, rel=1e-3)  # what its name and its card say
    weights = estimate(plan_from({"device_gib": 80, "actor": 1e6, "reference": QWEN3_30B_A3B}))["reference weights"]
    assert weights == pytest.approx(56.9, abs=0.1)  # GiB
    assert memory_check({"device_gib": 24, "actor": 1e6, "reference": QWEN3_30B_A3B}).status == "fail"


MIXTURES = {
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 96},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 200,
                 "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "Mixtral": {"num_local_experts": 4},
    "Glm4Moe": {"n_routed_experts": 4, "moe_intermediate_size": 96, "n_shared_experts": 1, "first_k_dense_replace": 1},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", MIXTURES)
def test_a_mixture_is_as_large_as_a_real_model(kind):
    shape = SHAPE | MIXTURES[kind] | {"head_dim": 16}
    assert Model(**shape).size == pytest.approx(real(shape, kind=kind).num_parameters(), rel=0.02)


def test_a_plain_number_of_parameters_has_a_rung_of_lora_too():
    names = [name for name, _ in ladder(plan_from({"device_gib": 24, "actor": 7e9}))]
    assert names == ["gradient checkpointing", "8-bit Adam", "LoRA of rank 16, the actor as its own reference"]
    llama = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
             "vocab_size": 32000}  # fmt: skip
    shape = Model(**llama)
    assert Model(parameters=shape.size).adapters(16) == pytest.approx(shape.adapters(16), rel=0.1)
    assert memory_check({"device_gib": 24, "actor": 7e9}).do.startswith("it fits with: 8-bit Adam (")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_lora_trains_what_peft_trains():
    import peft

    model = peft.get_peft_model(real(SHAPE), peft.LoraConfig(r=8, target_modules="all-linear"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert Model(**SHAPE).adapters(8) == sum(parameter.numel() for parameter in trained)
    held = allocated(model, torch.optim.AdamW(trained, lr=1e-4))
    assert estimated(precision="float32", lora_rank=8) == pytest.approx(held, rel=0.05)


def test_sixteen_bytes_a_parameter_in_mixed_precision_and_what_zero_divides():
    def gib(**plan):
        return sum(estimate(plan_from({"device_gib": 1, "actor": 1e9, "devices": 64} | plan)).values()) * GIB / 1e9

    # The first figure of the ZeRO paper, for 7.5 billion parameters and 64 devices: 120, 31.4, 16.6 and 1.9 GB.
    assert gib() * 7.5 == pytest.approx(120)
    assert gib(sharding="zero1") * 7.5 == pytest.approx(31.4, abs=0.05)
    assert gib(sharding="zero2") * 7.5 == pytest.approx(16.6, abs=0.05)
    assert gib(sharding="zero3") * 7.5 == gib(sharding="fsdp") * 7.5 == pytest.approx(1.9, abs=0.05)


def test_all_models_count_and_frozen_ones_by_their_weights_alone():
    parts = estimate(plan_from({"device_gib": 80, "actor": 1e9, "critic": 1e9, "reference": 1e9, "reward": 5e8}))
    assert parts["critic optimizer"] == parts["actor optimizer"] == pytest.approx(12e9 / GIB)
    assert parts["reference weights"] == pytest.approx(2e9 / GIB)
    assert parts["reward weights"] == pytest.approx(1e9 / GIB)
    assert not any(name.startswith(("reference", "reward")) and "weights" not in name for name in parts)


ACTIVE = {"hidden_size": 256, "intermediate_size": 704, "vocab_size": 50}
"""Few words, as more of their logits is there in the backward pass than is kept for it."""
KEEPING = {
    "Qwen2": ({}, None), "Llama": ({"num_key_value_heads": 8}, None), "wide": ({"intermediate_size": 2048}, None),
    "Mixtral": ({"num_local_experts": 4, "num_experts_per_tok": 2}, None),
    "Qwen2Moe": ({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "mlp_only_layers": [1],
                  "shared_expert_intermediate_size": 200}, None),
    "LoRA": ({}, 8), "LoRA of rank 64": ({}, 64),
}  # fmt: skip


@pytest.mark.by_day("dtype0-float32-Mixtral", "dtype1-bfloat16-LoRA")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")])
def test_activations_are_within_15_per_cent_of_what_a_real_model_keeps_for_its_backward_pass(name, dtype, precision):
    import peft

    more, rank = KEEPING[name]
    # A CPU keeps no weights of attention, as a GPU does in float32 where several queries share a key.
    shape = SHAPE | ACTIVE | ({"num_key_value_heads": 8} if precision == "float32" else {}) | more
    model = real(shape, dtype, name if name in ("Qwen2", "Llama", "Mixtral", "Qwen2Moe") else "Qwen2")
    if rank:
        settings = peft.LoraConfig(r=rank, target_modules="all-linear", lora_dropout=0.0)
        model = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
    ids = torch.randint(0, 50, (2, 256))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no other gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=ids, labels=ids)
    plan = {"device_gib": 1, "actor": shape, "length": 256, "micro_batch": 2, "precision": precision, "lora_rank": rank}
    held = sum(size for size, _ in kept.values())
    assert estimate(plan_from(plan))["activations"] * GIB == pytest.approx(held, rel=0.15)


@pytest.mark.parametrize("more", [{}, MIXTURES["Qwen3Moe"]], ids=["dense", "mixture"])
def test_weights_in_8_bits_are_those_of_a_model_on_the_meta_device(more):
    shape = SHAPE | more | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}
    with torch.device("meta"):
        model = real({key: value for key, value in shape.items() if key != "quantization_config"}, torch.bfloat16,
                     "Qwen3Moe" if more else "Qwen2")  # fmt: skip
    held = 0
    for name, item in model.named_parameters():
        in_layer = "layers" in name and item.dim() > 1
        held += (item.to(torch.float8_e4m3fn) if in_layer else item).nbytes
        held += 4 * -(-item.shape[-2] // 64) * -(-item.shape[-1] // 64) * item.shape[:-2].numel() if in_layer else 0
    weights = estimate(plan_from({"device_gib": 1, "actor": 1.0, "reference": shape}))["reference weights"]
    assert weights * GIB == pytest.approx(held, rel=0.02)


# What an H200 allocated at most in a training step beyond its states, GiB; tests/benchmarks/gpu.py measures it.
ON_A_GPU = [
    ({"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16,
      "num_key_value_heads": 4, "vocab_size": 32000}, {"micro_batch": 4, "length": 2048}, 8.888),
    ({"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16,
      "num_key_value_heads": 4, "vocab_size": 32000}, {"micro_batch": 4, "length": 2048, "checkpointing": True}, 3.731),
    ({"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16,
      "num_key_value_heads": 4, "vocab_size": 1000}, {"micro_batch": 4, "length": 2048, "precision": "float32"},
     29.095),
    ({"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 12, "num_attention_heads": 16,
      "num_key_value_heads": 2, "vocab_size": 151936}, {"micro_batch": 2, "length": 4096}, 24.331),
    ({"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 12,
      "num_key_value_heads": 4, "vocab_size": 1000}, {"micro_batch": 8, "length": 1024}, 4.301),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "plan", "allocated"), ON_A_GPU)
def test_activations_are_within_15_per_cent_of_what_a_gpu_allocated(shape, plan, allocated):
    given = {"device_gib": 80, "actor": shape, "precision": "bfloat16"} | plan
    assert estimate(plan_from(given))["activations"] == pytest.approx(allocated, rel=0.15)


def test_activations_grow_with_tokens_and_shrink_by_checkpointing():
    def activations(**plan):
        given = {"device_gib": 1, "actor": SHAPE, "length": 512, "micro_batch": 4} | plan
        return estimate(plan_from(given)).get("activations", 0.0)

    assert activations(micro_batch=8) == pytest.approx(2 * activations())
    assert activations(checkpointing=True) < 0.7 * activations()
    assert activations(length=0) == activations(actor=1e9) == 0.0
    assert activations(critic=SHAPE) == activations()


BIG = {"device_gib": 80, "devices": 8, "actor": SHAPE | {"hidden_size": 4096, "num_hidden_layers": 48}, "length": 8192,
       "micro_batch": 4, "reference": 8e9}  # fmt: skip


def test_each_rung_of_the_ladder_needs_less_and_the_first_that_fits_is_the_last_named():
    sizes = [sum(estimate(rung).values()) for _, rung in ladder(plan_from(BIG))]
    assert sizes == sorted(sizes, reverse=True)
    check = memory_check(BIG)
    assert check.status == "fail"
    assert check.do.startswith("it fits with: micro_batch 1 with accumulation (")
    fits = next(size for size in sizes if size <= 72)
    assert check.do.endswith(f"({fits:.3g} GiB)")


def test_a_ladder_does_not_name_what_is_done_already():
    names = [name for name, _ in ladder(plan_from(BIG | {"sharding": "fsdp", "checkpointing": True, "micro_batch": 1}))]
    assert names == ["8-bit Adam", "LoRA of rank 16, the actor as its own reference"]
    done = BIG | {"sharding": "zero2", "optimizer": "sgd", "lora_rank": 4, "sampler_gib": 30}
    assert [name for name, _ in ladder(plan_from(done))][-2:] == [
        "ZeRO 3 or FSDP",
        "the sampler asleep during an update",
    ]


def test_what_never_fits_is_said_to():
    assert memory_check({"device_gib": 1, "actor": 1e12}).do.startswith("not even 8-bit Adam (")
    done = {"device_gib": 1, "actor": 1e12, "optimizer": "sgd", "lora_rank": 8}
    assert memory_check(done).do == "take more or larger devices, or a smaller model"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({}, "memory: device_gib: Field required"),
        ({"device_gib": 0, "actor": 1e9}, "memory: device_gib: Input should be greater than 0"),
        ({"device_gib": 80, "actor": -1}, "memory: actor.parameters: Input should be greater than 0"),
        ({"device_gib": 80, "actor": {}}, "memory: a model without parameters or shape given"),
        ({"device_gib": 80, "actor": 1e9, "sharding": "zero4"}, "memory: sharding: Input should be 'none'"),
        ({"device_gib": 80, "actor": 1e9, "gpus": 8}, "memory: gpus: Extra inputs"),
        ({"device_gib": 80, "actor": {"num_experts_per_tok": 8}}, "memory: actor: Value error, experts without their"),
        ({"device_gib": float("nan"), "actor": 1e9}, "memory: device_gib"),
    ],
)
def test_a_plan_that_cannot_be_used_is_refused(plan, message):
    with pytest.raises(DiagError) as error:
        td.preflight(memory=plan)
    assert str(error.value).startswith(message)
