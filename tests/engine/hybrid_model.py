"""A small hybrid model, attention and recurrent layers in turn, and its state adapter.

The model computes a recurrent layer from a whole text at once, without any state: a convolution,
then sums over pairs of positions weighted by the decay between them. The adapter goes row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from engine.models import CONTEXT, VOCAB
from specfast.engine import ChainRows, StateItem
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

HYBRID = ("recurrent", "attention", "recurrent", "attention")
KERNEL = 3


class HybridConfig(PreTrainedConfig):
    model_type = "specfast_test_hybrid"

    def __init__(self, kinds: Sequence[str] = HYBRID, head_dim: int = 64, **options: Any) -> None:
        self.kinds = list(kinds)
        self.num_hidden_layers = len(self.kinds)
        self.vocab_size = VOCAB
        self.hidden_size = 32
        self.num_attention_heads = 4
        self.num_key_value_heads = 2
        self.head_dim = head_dim
        self.state_heads = 2
        self.key_dim = 4
        self.value_dim = 8
        self.max_position_embeddings = CONTEXT
        super().__init__(**options)


class Attention(nn.Module):
    is_causal = True

    def __init__(self, config: HybridConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.query = nn.Linear(config.hidden_size, heads * self.head_dim)
        self.key = nn.Linear(config.hidden_size, kv_heads * self.head_dim)
        self.value = nn.Linear(config.hidden_size, kv_heads * self.head_dim)
        self.out = nn.Linear(heads * self.head_dim, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        query, key, value = (
            projection(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        out, _ = attend(self, query, key, value, None, scaling=self.head_dim**-0.5)
        return self.out(out.flatten(2))


class Recurrent(nn.Module):
    """A short convolution, then S = decay * S + key value^T and query^T S, per head."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.heads, self.key_dim, self.value_dim = (
            config.state_heads,
            config.key_dim,
            config.value_dim,
        )
        self.channels = self.heads * (2 * self.key_dim + self.value_dim)
        self.inputs = nn.Linear(config.hidden_size, self.channels)
        self.taps = nn.Parameter(torch.empty(self.channels, KERNEL))
        self.decay = nn.Linear(config.hidden_size, self.heads)
        self.out = nn.Linear(self.heads * self.value_dim, config.hidden_size)

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value [..., heads, dim] of convolved inputs."""
        dims = [self.key_dim, self.key_dim, self.value_dim]
        query, key, value = functional.silu(mixed).unflatten(-1, (self.heads, -1)).split(dims, -1)
        return query, key, value

    def log_decay(self, hidden_states: Tensor) -> Tensor:
        return functional.logsigmoid(self.decay(hidden_states))

    def convolved(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """[1, T, channels], and what was convolved, [1, channels, KERNEL - 1 + T]."""
        padded = functional.pad(self.inputs(hidden_states).transpose(1, 2), (KERNEL - 1, 0))
        mixed = functional.conv1d(padded, self.taps[:, None], groups=self.channels)
        return mixed.transpose(1, 2), padded

    def forward(self, hidden_states: Tensor) -> Tensor:
        query, key, value = self.split(self.convolved(hidden_states)[0])
        log_decay = self.log_decay(hidden_states).cumsum(1)
        between = log_decay[:, :, None] - log_decay[:, None]
        later = torch.ones(between.shape[1:3], dtype=torch.bool, device=between.device).triu(1)
        decay = between.masked_fill(later[:, :, None], -torch.inf).exp()
        scores = torch.einsum("bthk,bshk->btsh", query, key) * decay
        out = torch.einsum("btsh,bshv->bthv", scores, value)
        return self.out(out.flatten(2))


class HybridForCausalLM(PreTrainedModel):
    config_class = HybridConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(
            Attention(config, i) if kind == "attention" else Recurrent(config)
            for i, kind in enumerate(config.kinds)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(config.hidden_size) for _ in config.kinds)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.tokens

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        logits_to_keep: int = 0,
        **_options: Any,
    ) -> CausalLMOutput:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        hidden = self.tokens(input_ids) + self.places(position_ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            hidden = hidden + layer(hidden_states=norm(hidden))
        return CausalLMOutput(logits=self.head(hidden[:, -logits_to_keep:]))


class HybridAdapter:
    """Per recurrent layer S [heads, key_dim, value_dim] and the inputs of the last rows.

    longest_kept : rows whose states were kept, at most, in one call
    """

    def __init__(self) -> None:
        self.longest_kept = 0

    def state_items(self, model: PreTrainedModel) -> Mapping[str, Sequence[StateItem]]:
        return {
            name: [
                StateItem((m.heads, m.key_dim, m.value_dim), m.taps.dtype),
                StateItem((m.channels, KERNEL - 1), m.taps.dtype),
            ]
            for name, m in model.named_modules()
            if isinstance(m, Recurrent)
        }

    def advance(
        self, module: nn.Module, hidden_states: Tensor, states: Sequence[Tensor], rows: ChainRows
    ) -> tuple[Tensor, Sequence[Tensor]]:
        assert isinstance(module, Recurrent)
        state, window = states
        inputs = rows.by_request(module.inputs(hidden_states))
        decay = rows.by_request(module.log_decay(hidden_states).exp())
        outs, after = [], []
        for i in range(rows.width):
            seen = torch.cat([window, inputs[:, i, :, None]], dim=2)
            query, key, value = module.split((seen * module.taps).sum(2))
            update = torch.einsum("bhk,bhv->bhkv", key, value)
            state = decay[:, i, :, None, None] * state + update
            window = seen[:, :, 1:]
            outs.append(torch.einsum("bhk,bhkv->bhv", query, state).flatten(1))
            if not rows.last_only:
                after.append((state, window))
        self.longest_kept = max(self.longest_kept, len(after))
        out = module.out(rows.by_row(torch.stack(outs, dim=1)))
        if rows.last_only:
            return out, (state, window)
        return out, [rows.by_row(torch.stack(item, dim=1)) for item in zip(*after, strict=True)]


@torch.inference_mode()
def fresh_states(model: HybridForCausalLM, token_ids: list[int]) -> dict[str, list[Tensor]]:
    """The states after a text, as one sum over all of it; by module."""
    states = {}

    def note(module: nn.Module, _args: object, kwargs: dict[str, Tensor]) -> None:
        assert isinstance(module, Recurrent)
        mixed, inputs = module.convolved(kwargs["hidden_states"])
        _, key, value = module.split(mixed)
        log_decay = module.log_decay(kwargs["hidden_states"]).cumsum(1)
        since = (log_decay[:, -1:] - log_decay).exp()
        state = torch.einsum("bshk,bshv,bsh->bhkv", key, value, since)[0]
        states[names[module]] = [state, inputs[0, :, -(KERNEL - 1) :]]

    names = {
        module: name for name, module in model.named_modules() if isinstance(module, Recurrent)
    }
    hooks = [m.register_forward_pre_hook(note, with_kwargs=True) for m in names]
    model(torch.tensor([token_ids], device=model.device))
    for hook in hooks:
        hook.remove()
    return states


def hybrid_model(
    kinds: Sequence[str] = HYBRID, seed: int = 0, device: str = "cpu"
) -> HybridForCausalLM:
    """A random one whose greedy text is not constant and whose states matter to it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = HybridForCausalLM(HybridConfig(kinds))
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.4)
    return model.eval().to(device)
