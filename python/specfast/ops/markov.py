"""The sequential head of a block drafter: drafts whose logits wait for the token before."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specfast.ops._arguments import filter_tensors, has_edits
from specfast.ops._fakes import register_in_place
from specfast.sampling import DraftedBlock, SamplingRules

__all__ = ["markov_workspace", "sample_markov_block"]

MarkovKind = Literal["vanilla", "gated", "rnn"]

_WORKSPACE_WORDS = 18472


def markov_workspace(device: torch.device | str | None = None) -> Tensor | None:
    """The ``workspace`` of :func:`sample_markov_block`.

    Parameters
    ----------
    device : torch.device, optional
        Of the logits.

    Returns
    -------
    int64 [18472] | None
        Zeros, which a call leaves as it found them; None on a CPU, which needs none.

    Notes
    -----
    One workspace may serve many calls, but not at the same time: one per stream.
    """
    place = torch.device(device) if device is not None else torch.get_default_device()
    if place.type != "cuda":
        return None
    return torch.zeros(_WORKSPACE_WORDS, dtype=torch.int64, device=place)


def sample_markov_block(
    logits: Tensor,
    w1: Tensor,
    w2: Tensor,
    anchors: Tensor,
    sampling: SamplingRules,
    prefix_lens: Tensor,
    *,
    kind: MarkovKind = "vanilla",
    projection: Tensor | None = None,
    hidden_rows: Tensor | None = None,
    d2t: Tensor | None = None,
    out: DraftedBlock | None = None,
    workspace: Tensor | None = None,
) -> DraftedBlock:
    """Draft a block left to right, adding to each row of logits what the token before it says.

    Step j of request b adds ``w2 @ x`` to ``logits[b, j]``, in place, where x is ``w1[previous]``,
    and draws a token from the sum, which is the previous token of step j + 1; that of step 0 is the
    anchor. A gated or recurrent head changes x first, by the hidden state of the row, and by a
    state of r numbers that goes from step to step. With the corrected logits the records are the q
    of a chain's :class:`~specfast.Proposal`.

    Parameters
    ----------
    logits : float32 | bfloat16 [B, G, V]
        Of the backbone; overwritten with the corrected ones, rounded to their dtype, which are
        what is drawn from. Any strides of requests and steps. V <= 2^20.
    w1 : float32 | bfloat16 [E, r]
        A row per token of the target. r <= 1024.
    w2 : dtype of w1 [V, r]
        float32 only with float32 logits.
    anchors : int32 | int64 [B]
        Token before the block; negative in a padded slot, whose logits stay as they are.
    sampling : SamplingRules
        Temperature, filters and seed of each request. Penalties, edits, bitmask and coins have to
        be absent.
    prefix_lens : int32 [B]
        Committed KV length at this round. Counts the rounds for the random numbers.
    kind : "vanilla" | "gated" | "rnn"
        With z the sum of ``hidden_rows[b, j]`` and ``projection`` times what is known: "gated":
        ``x * sigmoid(z)``, z of x. "rnn": the tanh of the last third of z, z of (state, x); the
        state, zeros at first, becomes ``g * state + (1 - g) * tanh(second third)`` with g the
        sigmoid of the first.
    projection : dtype of w1 [r, r] | [3 r, 2 r], optional
        With "gated" and "rnn": the columns of the head's projection for x, or for state and x. Any
        row stride.
    hidden_rows : float32 [B, G, r] | [B, G, 3 r], optional
        With these: the projection's other columns times each row's hidden state, and its bias,
        which no token has a part in.
    d2t : int64 [V], optional
        Target id of column i is i + d2t[i]; absent, i.
    out : DraftedBlock, optional
        Buffers to fill (see ``DraftedBlock.empty``); needed if read after a graph's replay.
    workspace : int64 [18472], optional
        From :func:`markov_workspace`; absent, on CUDA: zeros that every call makes.

    Returns
    -------
    DraftedBlock
        ``out``, or a new one; every element is written.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails: a token without a row in ``w1`` adds nothing (BAD_TOKEN) and leaves the
    state as it is; rows and parameters are treated as :func:`sample_rows` treats them.
    Numbers: sums are float32. Tokens and records follow from the corrected logits bit for bit as
    in :func:`sample_rows` with ``level`` j. The corrected logits are equal on CPU and CUDA, except
    where ``w1`` is bfloat16 and r a multiple of 32: there CUDA multiplies in tensor cores, whose
    sum may differ from the CPU's in its last bits; it is the same in any batch and slot.
    Devices: CPU, CUDA. Deterministic. Capturable with ``out`` and ``workspace``; one launch for 64
    requests, or for 16 with a gated or recurrent head and outside the tensor cores. Cost: ``w2``
    once per step and launch, every row of logits read and written once, sampled rows read once
    more. Source: the Markov heads of DSpark (DeepSpec).

    Examples
    --------
    Token 2 makes 0 likely, 0 makes 1:

    >>> import torch, specfast
    >>> w1, w2 = torch.eye(3), torch.zeros(3, 3)
    >>> w2[0, 2] = w2[1, 0] = 5
    >>> rules = specfast.SamplingRules(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    >>> block = specfast.ops.sample_markov_block(
    ...     torch.zeros(1, 2, 3), w1, w2, torch.tensor([2]), rules,
    ...     torch.zeros(1, dtype=torch.int32))
    >>> block.tokens.tolist()
    [[0, 1]]
    """
    op = "sample_markov_block"
    filters = filter_tensors(op, sampling)
    if has_edits(sampling) or sampling.coins is not None:
        raise RuntimeError(
            f"{op}: expected sampling of temperature, filters and seeds alone, got edits, "
            "penalties, a bitmask or coins"
        )
    if out is None:
        # Of any rank: the op has the sentence for a wrong one.
        batch_size, num_steps = (0, 0, 0, *logits.shape)[-3:-1]
        out = DraftedBlock.empty(batch_size, num_steps, logits.device)
    if workspace is None:
        workspace = markov_workspace(logits.device)
    torch.ops.specfast.sample_markov_block(
        logits,
        w1,
        w2,
        anchors,
        prefix_lens,
        d2t,
        *filters,
        out.tokens,
        out.records.packed,
        out.status,
        workspace,
        kind,
        projection,
        hidden_rows,
    )
    out.records.edited = False
    return out


register_in_place("sample_markov_block")
