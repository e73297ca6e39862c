"""The tail of the accept ops: what EOS, stop ids, limits and minimums leave of a path.

outputs   A    B    EOS   20   21        EOS at index 2: three are emitted, reason EOS
rows      R    A    B     EOS  20        and the rows before them are committed
"""

from __future__ import annotations

import pytest
import torch
from accept_batches import int32
from specfast import AcceptRecord, FinishReason, FinishRules, SamplingRules, ops

A, B, EOS = 10, 11, 2


def chain(drafts: list[int], predicted: list[int], device: str, **options):
    return ops.accept_chain(
        int32([[1, *drafts]], device=device),
        int32([10], device=device),
        target_predict=int32(predicted, device=device),
        **options,
    )


def finish(device: str, **fields) -> FinishRules:
    return FinishRules(**{name: value.to(device) for name, value in fields.items()})


@pytest.mark.parametrize(
    ("out", "left", "emitted", "reason"),
    [
        ([A, B, EOS, 20, 21, 22], 5, 3, FinishReason.EOS),
        ([A, B, 20, 21, 22, EOS], 5, 5, FinishReason.LENGTH),
        ([A, B, EOS, 20, 21, 22], 3, 3, FinishReason.EOS),
        ([A, B, EOS, 20, 21, 22], 2, 2, FinishReason.LENGTH),
        ([A, B, 20], 0, 0, FinishReason.LENGTH),
        ([A, B, 20], 9, 3, FinishReason.NOT_FINISHED),
    ],
)
def test_eos_and_limit(device: str, out: list[int], left: int, emitted: int, reason) -> None:
    rules = finish(device, eos_token_ids=int32([99, EOS]), max_tokens_left=int32([left]))
    record = chain(out[:-1], out, device, finish=rules)
    assert record.finish_reason.tolist() == [reason]
    assert record.commit_lens.tolist() == [emitted]
    assert record.new_seq_lens.tolist() == [10 + emitted]
    assert record.out_tokens[0].tolist() == out[:emitted] + [-1] * (len(out) - emitted)
    assert record.predict.tolist() == record.out_tokens[0].tolist()
    assert record.accept_lens.tolist() == [len(out)]
    assert (record.next_anchor.item() == -1) == (reason is not FinishReason.NOT_FINISHED)


def test_stop_ids_min_tokens_and_ignore_eos(device: str) -> None:
    out = [EOS, 30, EOS, 31]
    eos = int32([EOS])
    stop = int32([[-1, 30]])

    def ending(**fields) -> tuple[int, int]:
        record = chain(out[:-1], out, device, finish=finish(device, **fields))
        return int(record.commit_lens), int(record.finish_reason)

    ignore = torch.tensor([True])
    assert ending(eos_token_ids=eos, stop_token_ids=stop) == (1, FinishReason.EOS)
    assert ending(eos_token_ids=eos, stop_token_ids=stop, ignore_eos=ignore) == (
        2,
        FinishReason.STOP,
    )
    assert ending(eos_token_ids=eos, min_tokens_left=int32([2])) == (3, FinishReason.EOS)
    assert ending(eos_token_ids=eos, min_tokens_left=int32([4])) == (4, FinishReason.NOT_FINISHED)
    assert ending(eos_token_ids=eos, min_tokens_left=int32([-(2**31)])) == (1, FinishReason.EOS)


@pytest.mark.parametrize("rule", ["greedy", "target_only"])
def test_rows_of_a_ragged_batch_without_requests_are_padding(device: str, rule: str) -> None:
    record = AcceptRecord.empty(0, 3, 5, device)
    record.predict.fill_(77)
    nothing = int32([], device=device)
    sampling = SamplingRules(nothing.float(), nothing.long()) if rule != "greedy" else None
    ops.accept_chain(
        nothing.view(0, 3),
        nothing,
        target_logits=torch.zeros(5, 4, device=device),
        qo_indptr=int32([2], device=device),
        rule=rule,
        sampling=sampling,
        out=record,
    )
    assert record.predict.tolist() == [-1] * 5
