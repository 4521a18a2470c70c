"""Memory of a training step on one device: models, gradients, optimiser, activations; and what to do if it is short.

States follow ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054): with Ψ parameters and Adam in mixed precision 2Ψ bytes
of weights, 2Ψ of gradients and 12Ψ of optimiser states, each divided by the devices it is sharded over. Activations
follow Korthikanti et al. 2022, arXiv 2205.05198, with attention that is not kept (FlashAttention). LoRA: Hu et al.
2021, arXiv 2106.09685.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tracker_diag.errors import DiagError
from tracker_diag.preflight.check import Check, failed, passed

NAME = "memory"
GIB = 1 << 30
ROOM = 0.1
"""Share of the device that is left for fragments, buffers of communication and the driver: a choice."""
LORA_RANK = 16
"""Of the last rung of the ladder."""

GIVE = "give memory=..., a plan with device_gib, actor, and what else is trained or held; see docs/preflight.md"

Sharding: TypeAlias = Literal["none", "zero1", "zero2", "zero3", "fsdp"]
Optimizer: TypeAlias = Literal["adam", "adam8bit", "sgd"]

SHARDED: Mapping[Sharding, tuple[bool, bool, bool]] = {
    "none": (False, False, False),
    "zero1": (False, False, True),
    "zero2": (False, True, True),
    "zero3": (True, True, True),
    "fsdp": (True, True, True),
}
"""Whether weights, gradients and optimiser states are divided by the number of devices."""

MOMENTS: Mapping[Optimizer, int] = {"adam": 8, "adam8bit": 2, "sgd": 0}
"""Bytes of optimiser states per trained parameter, without the master copy of the weights."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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

    @property
    def size(self) -> float:
        """Parameters.

        Raises:
            DiagError: neither their number nor the whole shape is known.
        """
        if self.parameters is not None:
            return self.parameters
        hidden, layers, vocabulary = self.shape
        linear = sum(rows * columns for rows, columns in self.linear)
        heads = 1 if self.tie_word_embeddings else 2
        return layers * (linear + 2 * hidden) + heads * vocabulary * hidden + hidden

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
    def linear(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the linear maps of a layer: queries, keys, values, output; gate, up, down."""
        hidden, _, _ = self.shape
        heads = self.num_attention_heads or 1
        head = self.head_dim or hidden // heads
        queries, keys = heads * head, (self.num_key_value_heads or heads) * head
        inner = self.intermediate_size or 4 * hidden
        return (
            [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
            + [(hidden, inner)] * 2
            + [(inner, hidden)]
        )

    def adapters(self, rank: int) -> float:
        """Parameters of LoRA on all linear maps: rank · (inputs + outputs) each."""
        _, layers, _ = self.shape
        return float(layers * rank * sum(rows + columns for rows, columns in self.linear))


class Plan(_Closed):
    """What is to lie on a device at once."""

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
    sharding: Sharding = "none"
    precision: Literal["mixed", "float32", "bfloat16"] = "mixed"
    """mixed: 16-bit weights and gradients with a float32 master copy; bfloat16: without one."""
    optimizer: Optimizer = "adam"
    lora_rank: int | None = Field(default=None, ge=1)
    micro_batch: int = Field(default=1, ge=1)
    """Sequences of a forward and backward pass."""
    length: int = Field(default=0, ge=0)
    """Tokens of a sequence; 0 leaves activations out."""
    checkpointing: bool = False
    sampler_gib: float = Field(default=0.0, ge=0)
    """What an inference engine on the same device keeps while training goes on."""

    @field_validator("actor", "critic", "reference", "reward", mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        return {"parameters": given} if isinstance(given, int | float) else given


def plan_of(given: Mapping[str, Any] | Plan) -> Plan:
    """The plan in `given`.

    Raises:
        DiagError: which field is wrong.
    """
    if isinstance(given, Plan):
        return given
    try:
        return Plan.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        raise DiagError(f"memory: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def states(model: Model, plan: Plan, *, trained: bool) -> dict[str, float]:
    """Bytes of weights, gradients and optimiser states of one model on one device."""
    width = 4 if plan.precision == "float32" else 2
    learnt = (model.adapters(plan.lora_rank) if plan.lora_rank else model.size) if trained else 0.0
    frozen = model.size if plan.lora_rank or not trained else 0.0
    master = 4 if plan.precision == "mixed" else 0
    moments = MOMENTS[plan.optimizer] * (width / 4 if plan.precision == "bfloat16" and plan.optimizer == "adam" else 1)
    parts = ((frozen + learnt) * width, learnt * width, learnt * (master + moments))
    shares = (plan.devices if sharded else 1 for sharded in SHARDED[plan.sharding])
    names = ("weights", "gradients", "optimizer")
    return {name: size / share for name, size, share in zip(names, parts, shares, strict=True)}


def activations(model: Model, plan: Plan) -> float:
    """Bytes of activations of a forward pass of one model that is trained; 0 where its shape is not known.

    34 · s · b · h bytes a layer in 16 bits; with checkpointing 2 · s · b · h a layer and the whole of one. The logits
    are there in the width of the weights, and in float32 with their gradient.
    """
    if not plan.length or model.hidden_size is None:
        return 0.0
    hidden, layers, vocabulary = model.shape
    wide = 2 if plan.precision == "float32" else 1
    tokens = plan.length * plan.micro_batch
    layer = 34 * tokens * hidden * wide
    kept = layers * 2 * tokens * hidden * wide + layer if plan.checkpointing else layers * layer
    return float(kept + tokens * vocabulary * (2 * wide + 8))


def estimate(plan: Plan) -> dict[str, float]:
    """GiB on one device, by what uses it.

    Actor and critic are taken to be updated one after the other: their states add up, of activations the larger counts.
    """
    found: dict[str, float] = {}
    models = (("actor", plan.actor), ("critic", plan.critic), ("reference", plan.reference), ("reward", plan.reward))
    for name, model in models:
        if model is not None:
            for part, size in states(model, plan, trained=name in ("actor", "critic")).items():
                if size:
                    found[f"{name} {part}"] = size / GIB
    both = [activations(model, plan) for model in (plan.actor, plan.critic) if model is not None]
    if largest := max(both):
        found["activations"] = largest / GIB
    if plan.sampler_gib:
        found["sampler"] = plan.sampler_gib
    return found


def ladder(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """What to try, each on top of what comes before: first what costs time, then what changes the training."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("micro_batch 1 with accumulation", {"micro_batch": 1}),
        ("gradient checkpointing", {"checkpointing": True}),
    ]
    if plan.devices > 1:
        stages: tuple[Sharding, ...] = ("zero1", "zero2", "zero3")
        reached = "zero3" if plan.sharding == "fsdp" else plan.sharding
        later = stages[stages.index(reached) + 1 :] if reached in stages else stages
        steps += [
            (f"ZeRO {stage[-1]}" + (" or FSDP" if stage == "zero3" else ""), {"sharding": stage}) for stage in later
        ]
    steps.append(("8-bit Adam", {"optimizer": "adam8bit"}))
    if plan.actor.hidden_size is not None and (plan.critic is None or plan.critic.hidden_size is not None):
        steps.append(
            (f"LoRA of rank {LORA_RANK}, the actor as its own reference", {"lora_rank": LORA_RANK, "reference": None})
        )
    if plan.sampler_gib:
        steps.append(("the sampler asleep while training goes on", {"sampler_gib": 0.0}))
    for name, change in steps:
        changed = plan.model_copy(update=change)
        if changed != plan and not (plan.optimizer == "sgd" and "optimizer" in change):
            if "lora_rank" in change and plan.lora_rank:
                continue
            plan = changed
            yield name, plan


def memory_check(given: Mapping[str, Any] | Plan) -> Check:
    """Whether the plan fits the device with a tenth to spare, and which rung of the ladder makes it fit.

    Raises:
        DiagError: a plan that cannot be used.
    """
    plan = plan_of(given)
    parts = estimate(plan)
    total, room = sum(parts.values()), plan.device_gib * (1 - ROOM)
    largest = ", ".join(f"{name} {size:.3g}" for name, size in sorted(parts.items(), key=lambda one: -one[1])[:4])
    told = f"{total:.3g} GiB of {plan.device_gib:.3g} ({largest})"
    values = {"total_gib": total, "device_gib": plan.device_gib} | {
        name.replace(" ", "_"): size for name, size in parts.items()
    }
    if total <= room:
        return passed(NAME, told, **values)
    tried: list[str] = []
    before = total
    for name, rung in ladder(plan):
        size = sum(estimate(rung).values())
        if size == before:  # of models whose shape is not known
            continue
        before = size
        tried.append(f"{name} ({size:.3g} GiB)")
        if size <= room:
            return failed(NAME, told, f"it fits with: {', then '.join(tried)}", **values)
    do = (
        f"not even {', then '.join(tried)} is enough: more or larger devices, or a smaller model"
        if tried
        else "a larger device"
    )
    return failed(NAME, told, do, **values)
