"""Memory of a training step on one device: models, gradients, optimiser, activations; and what to do if it is short.

States follow ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054): Ψ parameters and Adam in mixed precision take 2Ψ bytes
of weights, 2Ψ of gradients, 12Ψ of optimiser states. Each is divided by the devices it is sharded over. Activations are
counted as by Korthikanti et al. 2022, arXiv 2205.05198, for gated feed-forward parts. Attention is not kept
(FlashAttention). LoRA: Hu et al. 2021, arXiv 2106.09685.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tracker_diag.errors import DiagError
from tracker_diag.preflight.check import Check, failed, passed

NAME = "memory"
GIB = 1 << 30
ROOM = 0.1
"""Share of the device that is left for fragments, buffers of communication and the driver: a choice."""
LORA_RANK = 16
"""Of the LoRA rung of the ladder."""

GIVE = "give memory=..., a plan with device_gib, actor, and what else is trained or held; see docs/preflight.md"

STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
"""Of ZeRO: from 1 on optimiser states are divided by the number of devices, from 2 on gradients, from 3 on weights."""
MOMENTS = {"adam": 8, "adam8bit": 2, "sgd": 0}
"""Bytes of optimiser states per trained parameter, without the master copy of the weights."""


class Model(BaseModel):
    """The size of one model: `parameters`, or the shape of a decoder, by the names of a Hugging Face config.json."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # a config.json has much more

    parameters: float | None = Field(default=None, gt=0)
    hidden_size: int | None = Field(default=None, gt=0)
    intermediate_size: int | None = Field(default=None, gt=0)
    num_hidden_layers: int | None = Field(default=None, gt=0)
    num_attention_heads: int | None = Field(default=None, gt=0)
    num_key_value_heads: int | None = Field(default=None, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    vocab_size: int | None = Field(default=None, gt=0)
    tie_word_embeddings: bool = False
    experts: int = Field(
        default=0, ge=0, validation_alias=AliasChoices("num_experts", "num_local_experts", "n_routed_experts")
    )
    """Of a mixture of experts, in each sparse layer; all of them are held, though a token passes few."""
    num_experts_per_tok: int = Field(default=0, ge=0)
    moe_intermediate_size: int | None = Field(default=None, gt=0)
    n_shared_experts: int | None = Field(default=None, ge=0)
    shared_expert_intermediate_size: int | None = Field(default=None, ge=0)
    first_k_dense_replace: int = Field(default=0, ge=0)
    decoder_sparse_step: int = Field(default=1, ge=1)
    mlp_only_layers: tuple[int, ...] = ()
    quantization_config: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    """Where its `quant_method` is fp8, linear maps of layers are held in 8 bits, with a float32 scale a block."""

    @model_validator(mode="before")
    @classmethod
    def _experts_are_counted(cls, given: Any) -> Any:
        known = [str(choice) for choice in cls.model_fields["experts"].validation_alias.choices]  # type: ignore[union-attr]
        sparse = isinstance(given, Mapping) and any("expert" in str(name) for name, n in given.items() if n)
        if sparse and "parameters" not in given and not any(given.get(name) for name in known):
            raise ValueError(f"experts without their number given, expected one of {', '.join(known)}, or parameters")
        return given

    @property
    def size(self) -> float:
        """Parameters."""
        if self.parameters is not None:
            return self.parameters
        hidden, layers, vocabulary = self.shape
        linear = sum(rows * columns * copies for rows, columns, copies in self.linear)
        heads = 1 if self.tie_word_embeddings else 2
        return linear + 2 * hidden * layers + heads * vocabulary * hidden + hidden

    @property
    def shape(self) -> tuple[int, int, int]:
        """Hidden size, layers, vocabulary."""
        if self.hidden_size is None or self.num_hidden_layers is None or self.vocab_size is None:
            raise DiagError(
                "memory: a model without parameters or shape given, expected parameters, or hidden_size, "
                "intermediate_size, num_hidden_layers, num_attention_heads and vocab_size, as config.json has them"
            )
        return self.hidden_size, self.num_hidden_layers, self.vocab_size

    @property
    def linear(self) -> list[tuple[int, int, int]]:
        """Inputs, outputs and number of the linear maps of all layers: attention, dense layers, experts, routers."""
        hidden, layers, _ = self.shape
        heads = self.num_attention_heads or 1
        head = self.head_dim or hidden // heads
        queries, keys = heads * head, (self.num_key_value_heads or heads) * head
        inner, expert, shared = self._widths
        sparse = self.sparse_layers
        maps = [(hidden, queries, layers), (hidden, keys, 2 * layers), (queries, hidden, layers)]
        maps.append((hidden, self.experts, sparse))
        for width, copies in ((inner, layers - sparse), (expert, self.experts * sparse), (shared, sparse)):
            maps += [(hidden, width, 2 * copies), (width, hidden, copies)]
        return [(rows, columns, copies) for rows, columns, copies in maps if columns and copies]

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Inner width of a dense feed-forward part, of one expert, and of the experts that all tokens pass."""
        inner = self.intermediate_size or 4 * self.shape[0]
        expert = self.moe_intermediate_size or inner
        return inner, expert, self.shared_expert_intermediate_size or (self.n_shared_experts or 0) * expert

    @property
    def sparse_layers(self) -> int:
        dense = {*range(self.first_k_dense_replace), *self.mlp_only_layers}
        layers = range(self.shape[1]) if self.experts else ()
        return sum(layer not in dense and (layer + 1) % self.decoder_sparse_step == 0 for layer in layers)

    def kept(self, plan: "Plan") -> tuple[float, float]:
        """Values that a token keeps for the backward pass, in a dense and a sparse layer, in the weights' width.

        8.3 · hidden for norms, attention and residuals. 3 less if weights are frozen, 2.2 more in 16 bits, as norms
        keep float32. Keys and values; 4 for each unit of inner width (gate, up, activation, product). 2 · hidden for
        each expert (input and output), and the 7 outputs of LoRA. In float32, PyTorch keeps the weights of attention if
        several queries share a key. Measured on a GPU: docs/performance.md.
        """
        hidden, (inner, expert, shared) = self.shape[0], self._widths
        heads = self.num_attention_heads or 1
        keys = self.num_key_value_heads or heads
        always = (8.3 if plan.precision == "float32" else 10.5) * hidden + 2 * keys * (self.head_dim or hidden // heads)
        always += 7 * plan.lora_rank - 3 * hidden if plan.lora_rank else 0
        always += heads * plan.length if plan.precision == "float32" and keys < heads else 0
        routed = self.num_experts_per_tok * (4 * expert + 2 * hidden)
        return always + 4 * inner, always + 4 * shared + routed

    def weight_bytes(self, width: int) -> float:
        """Bytes of the weights alone, `width` bytes each, or 8 bits where the model is quantised to fp8."""
        if self.quantization_config.get("quant_method") != "fp8" or self.hidden_size is None:
            return self.size * width
        rows, columns = (self.quantization_config.get("weight_block_size") or (128, 128))[:2]
        linear = sum(inputs * outputs * copies for inputs, outputs, copies in self.linear)
        scales = sum(-(-inputs // rows) * -(-outputs // columns) * copies for inputs, outputs, copies in self.linear)
        return (self.size - linear) * width + linear + 4 * scales

    def adapters(self, rank: int) -> float:
        """Parameters of LoRA on all linear maps: rank · (inputs + outputs) each.

        A plain number of parameters means the usual shape: a dense decoder of 12 · layers · hidden² parameters, with a
        layer for every 128 of its hidden size. That gives 42 million for 7 billion at rank 16; Llama has 40.
        """
        if self.parameters is not None and self.hidden_size is None:
            hidden = (self.parameters * 128 / 12) ** (1 / 3)
            of_a_layer = 4 * 2 * hidden + 3 * (1 + 8 / 3) * hidden  # attention, and a feed-forward part 8/3 as wide
            return float(rank * of_a_layer * hidden / 128)
        return float(rank * sum((rows + columns) * copies for rows, columns, copies in self.linear))


class Plan(BaseModel):
    """What a device is to hold at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device_gib: float = Field(gt=0)
    """Memory of one device, GiB."""
    actor: Model
    critic: Model | None = None
    """Trained as the actor is."""
    reference: Model | None = None
    """Weights alone. With LoRA the actor without its adapters serves: leave it out."""
    reward: Model | None = None
    devices: int = Field(default=1, ge=1)
    """Over which states are sharded."""
    sharding: Literal["none", "zero1", "zero2", "zero3", "fsdp"] = "none"
    precision: Literal["mixed", "float32", "bfloat16"] = "mixed"
    """mixed: 16-bit weights and gradients with a float32 master copy; bfloat16: without it."""
    optimizer: Literal["adam", "adam8bit", "sgd"] = "adam"
    lora_rank: int | None = Field(default=None, ge=1)
    micro_batch: int = Field(default=1, ge=1)
    """Sequences of a forward and backward pass."""
    length: int = Field(default=0, ge=0)
    """Tokens of a sequence; 0 leaves activations out."""
    checkpointing: bool = False
    sampler_gib: float = Field(default=0.0, ge=0)
    """What an inference engine on the same device keeps during an update."""

    @field_validator("actor", "critic", "reference", "reward", mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        return {"parameters": given} if isinstance(given, int | float) else given


def plan_from(given: Mapping[str, Any]) -> Plan:
    """The plan in `given`."""
    try:
        return Plan.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        raise DiagError(f"memory: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def states(model: Model, plan: Plan, *, trained: bool) -> dict[str, float]:
    """Bytes of weights, gradients and optimiser states of one model on one device."""
    width = 4 if plan.precision == "float32" else 2
    learnt = (model.adapters(plan.lora_rank) if plan.lora_rank else model.size) if trained else 0.0
    frozen = model.weight_bytes(width) if plan.lora_rank or not trained else 0.0
    master = 4 if plan.precision == "mixed" else 0
    halved = plan.precision == "bfloat16" and plan.optimizer == "adam"  # its moments are 16 bits wide as well
    moments = MOMENTS[plan.optimizer] / (2 if halved else 1)
    stage = STAGES[plan.sharding]
    parts = (
        ("weights", frozen + learnt * width, stage >= 3),
        ("gradients", learnt * width, stage >= 2),
        ("optimizer", learnt * (master + moments), stage >= 1),
    )
    return {name: size / (plan.devices if sharded else 1) for name, size, sharded in parts}


def activations(model: Model, plan: Plan) -> float:
    """Bytes of activations of a forward pass of one model that is trained; 0 where its shape is not known.

    The logits are there in the width of the weights, and three times in float32: a copy, its log-softmax, its gradient.
    With checkpointing a layer keeps only its input. The whole of the largest layer is there when the logits are gone.
    """
    if not plan.length or model.hidden_size is None:
        return 0.0
    hidden, layers, vocabulary = model.shape
    width = 4 if plan.precision == "float32" else 2
    tokens = plan.length * plan.micro_batch
    dense, routed = model.kept(plan)
    logits = vocabulary * (width + 12)
    sparse = model.sparse_layers
    if plan.checkpointing:
        largest = max(dense if sparse < layers else 0.0, routed if sparse else 0.0)
        return float(tokens * (width * layers * hidden + max(width * largest, logits)))
    return float(tokens * (width * ((layers - sparse) * dense + sparse * routed) + logits))


def estimate(plan: Plan) -> dict[str, float]:
    """GiB on one device, by what uses it.

    Actor and critic are taken to be updated one after the other: their states add up, of activations the larger counts.
    """
    models = {"actor": plan.actor, "critic": plan.critic, "reference": plan.reference, "reward": plan.reward}
    held = {
        f"{name} {part}": size
        for name, model in models.items()
        if model is not None
        for part, size in states(model, plan, trained=name in ("actor", "critic")).items()
    }
    held["activations"] = max(activations(model, plan) for model in (plan.actor, plan.critic) if model is not None)
    held["sampler"] = plan.sampler_gib * GIB
    return {name: size / GIB for name, size in held.items() if size}


def ladder(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """What to try, each on top of what comes before: first what costs time, then what changes the training."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("micro_batch 1 with accumulation", {"micro_batch": 1}),
        ("gradient checkpointing", {"checkpointing": True}),
    ]
    if plan.devices > 1:
        names = ("ZeRO 1", "ZeRO 2", "ZeRO 3 or FSDP")[STAGES[plan.sharding] :]
        steps += [(name, {"sharding": f"zero{name[5]}"}) for name in names]
    if plan.optimizer == "adam":
        steps.append(("8-bit Adam", {"optimizer": "adam8bit"}))
    if not plan.lora_rank:
        lora = {"lora_rank": LORA_RANK, "reference": None}
        steps.append((f"LoRA of rank {LORA_RANK}, the actor as its own reference", lora))
    steps.append(("the sampler asleep during an update", {"sampler_gib": 0.0}))
    for name, change in steps:
        changed = plan.model_copy(update=change)
        if changed != plan:
            plan = changed
            yield name, plan


def memory_check(memory: Mapping[str, Any]) -> Check:
    """Whether the plan fits the device with a tenth to spare, and which rung of the ladder makes it fit."""
    plan = plan_from(memory)
    parts = estimate(plan)
    total, room = sum(parts.values()), plan.device_gib * (1 - ROOM)
    largest = sorted(parts, key=lambda name: -parts[name])[:4]
    named = ", ".join(f"{name} {parts[name]:.3g}" for name in largest)
    reason = f"{total:.3g} GiB of {plan.device_gib:.3g} ({named})"
    values = {"total_gib": total, "device_gib": plan.device_gib}
    values |= {name.replace(" ", "_"): size for name, size in parts.items()}
    if total <= room:
        return passed(NAME, reason, **values)
    tried: list[str] = []
    before = total
    for name, rung in ladder(plan):
        size = sum(estimate(rung).values())
        if size == before:  # activations of a model whose shape is not known
            continue
        before = size
        tried.append(f"{name} ({size:.3g} GiB)")
        if size <= room:
            return failed(NAME, reason, f"it fits with: {', then '.join(tried)}", **values)
    steps = f"not even {', then '.join(tried)} is enough: " if tried else ""
    return failed(NAME, reason, f"{steps}take more or larger devices, or a smaller model", **values)
