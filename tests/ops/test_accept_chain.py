"""accept_chain: the longest prefix of drafts that the target repeats, and the tail.

rows      0        1        2        3
tokens    R   -->  A   -->  B   -->  C        (R is the anchor)
argmax    A        B        X        .        A and B accepted, X is the bonus
"""

from __future__ import annotations

import math

import pytest
import torch
from accept_batches import AcceptBatch, assert_same_record, int32, random_batch
from hypothesis import given
from hypothesis import strategies as st
from specfast import AcceptRecord, FinishRules, Status, ops, reference

A, B, C, X, EOS = 10, 11, 12, 77, 2


def chain(drafts: list[int], predicted: list[int], device: str, **options):
    return ops.accept_chain(
        int32([[1, *drafts]], device=device),
        int32([10], device=device),
        target_predict=int32(predicted, device=device),
        **options,
    )


def test_the_article_chain(device: str) -> None:
    record = chain([A, B, C], [A, B, X, 5], device)
    assert record.accept_index.tolist() == [[0, 1, 2, -1]]
    assert record.out_tokens.tolist() == [[A, B, X, -1]]
    assert record.predict.tolist() == [A, B, X, -1]
    assert record.num_correct_drafts.tolist() == [2]
    assert record.accept_lens.tolist() == record.commit_lens.tolist() == [3]
    assert record.new_seq_lens.tolist() == [13]
    assert record.positions.tolist() == [[10, 11, 12, -1]]
    assert record.bonus.tolist() == record.next_anchor.tolist() == [X]


def test_a_match_after_a_mismatch_does_not_count(device: str) -> None:
    record = chain([A, B, C, A], [A, X, C, A, X], device)
    assert record.num_correct_drafts.tolist() == [1]
    assert record.out_tokens.tolist() == [[A, X, -1, -1, -1]]


def test_all_right_and_all_wrong(device: str) -> None:
    assert chain([A, B], [A, B, C], device).out_tokens.tolist() == [[A, B, C]]
    assert chain([A, B], [X, B, C], device).out_tokens.tolist() == [[X, -1, -1]]


def test_no_drafts_is_plain_decoding(device: str) -> None:
    record = chain([], [X], device)
    assert record.out_tokens.tolist() == [[X]]
    assert record.accept_lens.tolist() == [1]


@pytest.mark.parametrize(("verify_len", "trim"), [(4, 0), (3, 0), (2, 1), (1, 2)])
def test_the_cut_and_what_it_trims(device: str, verify_len: int, trim: int) -> None:
    # The target repeats two drafts (raw = 2).
    record = chain(
        [A, B, C],
        [A, B, X, 5],
        device,
        verify_lens=int32([verify_len], device=device),
        return_trim=True,
    )
    capped = min(2, verify_len - 1)
    assert record.num_correct_drafts.tolist() == [capped]
    assert record.cap_trim_lens is not None
    assert record.cap_trim_lens.tolist() == [trim]
    assert record.out_tokens[0, : capped + 1].tolist() == [A, B, X][: capped + 1]


@pytest.mark.parametrize(("raw", "trim"), [(2, 0), (4, 1)])
def test_worked_trim_of_a_window_of_four(device: str, raw: int, trim: int) -> None:
    predicted = [A] * raw + [X] * (5 - raw)
    record = chain(
        [A, A, A, A], predicted, device, verify_lens=int32([4], device=device), return_trim=True
    )
    assert record.cap_trim_lens is not None
    assert record.cap_trim_lens.tolist() == [trim]


def test_padded_slot_leaves_nothing(device: str) -> None:
    record = chain([A, B], [A, B, C], device, verify_lens=int32([0], device=device))
    assert record.commit_lens.tolist() == record.accept_lens.tolist() == [0]
    assert record.new_seq_lens.tolist() == [10]
    assert record.bonus.tolist() == record.next_anchor.tolist() == [-1]
    for padded in (record.accept_index, record.out_tokens, record.positions, record.predict):
        assert (padded == -1).all()


ROWS = {
    "ties go to the lowest id": ([0.0, 5.0, 5.0, 5.0], 1, Status.OK),
    "zeros of both signs tie": ([-1.0, -0.0, 0.0, -2.0], 1, Status.OK),
    "one infinity": ([1.0, math.inf, 3.0, math.inf], 1, Status.OK),
    "NaN never wins": ([math.nan, 1.0, math.nan, 2.0], 3, Status.NAN_LOGITS),
}


@pytest.mark.parametrize("name", ROWS)
def test_argmax_rule(device: str, name: str) -> None:
    values, token, status = ROWS[name]
    logits = torch.tensor([values, [0.0, 0.0, 1.0, 0.0]], device=device)
    record = ops.accept_chain(
        int32([[0, token]], device=device), int32([5], device=device), target_logits=logits
    )
    assert record.out_tokens.tolist() == [[token, 2]]
    assert record.status.tolist() == [status]


@pytest.mark.parametrize(
    ("value", "status"), [(math.nan, Status.NAN_LOGITS), (-math.inf, Status.EMPTY_SUPPORT)]
)
@pytest.mark.parametrize("draft", [0, 3])
def test_a_row_without_a_value_ends_the_path(device: str, value, status, draft: int) -> None:
    logits = torch.full((2, 6), value, device=device)
    record = ops.accept_chain(
        int32([[1, draft]], device=device), int32([5], device=device), target_logits=logits
    )
    assert record.num_correct_drafts.tolist() == [0]
    assert record.out_tokens.tolist() == [[0, -1]]
    assert record.status.tolist() == [status]


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_bad_draft_ids_are_rejected(device: str, bad: int) -> None:
    logits = torch.tensor([[0.0, 1, 0, 0], [1.0, 0, 0, 0], [0.0, 0, 1, 0]], device=device)
    record = ops.accept_chain(
        torch.tensor([[9, 1, bad]], device=device),
        int32([0], device=device),
        target_logits=logits,
    )
    assert record.out_tokens.tolist() == [[1, 0, -1]]
    assert record.status.tolist() == [Status.BAD_TOKEN]


@pytest.mark.parametrize("too_large", [2**31 - 1, 2**31, 2**32 + 1])
def test_ids_beyond_the_record_are_bad(device: str, too_large: int) -> None:
    # Nothing names a vocabulary: an id still has to fit into an int32 record.
    for row in ([too_large, 1], [1, too_large]):
        batch = AcceptBatch(
            torch.tensor([[9, too_large]]),
            int32([0]),
            options={"target_predict": torch.tensor(row)},
        )
        expected = batch.run(reference.accept_chain)
        assert expected.status.tolist() == [Status.BAD_TOKEN]
        assert_same_record(batch.run(ops.accept_chain, device), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, dtype: torch.dtype, ragged: bool, unsound: bool) -> None:
    for seed in range(30):
        batch = random_batch(seed, tree=False, dtype=dtype, ragged=ragged, unsound=unsound)
        batch.options["return_trim"] = not ragged
        expected = batch.run(reference.accept_chain)
        assert_same_record(batch.run(ops.accept_chain, device), expected)


@given(seed=st.integers(0, 2**31 - 1), unsound=st.booleans(), ragged=st.booleans())
def test_given_predictions_equal_the_reference(seed: int, unsound: bool, ragged: bool) -> None:
    batch = random_batch(seed, tree=False, from_logits=False, unsound=unsound, ragged=ragged)
    assert_same_record(batch.run(ops.accept_chain), batch.run(reference.accept_chain))


@pytest.mark.parametrize("vocab", [1, 31, 1023, 1025, 20000])
@pytest.mark.parametrize("batch_size", [1, 5, 17, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_vocabulary_and_row_start(device: str, vocab: int, batch_size: int, dtype) -> None:
    # Rows start at every alignment, the best value lies anywhere, and the pad columns are poison.
    num_nodes = 3
    rng = torch.Generator().manual_seed(vocab + batch_size)
    storage = torch.randn(batch_size * num_nodes, vocab + 9, generator=rng).to(dtype)
    storage[:, 0] = math.nan
    storage[:, vocab + 1 :] = math.inf
    logits = storage[:, 1:]
    predicted = logits[:, :vocab].float().argmax(-1).view(batch_size, num_nodes)
    drafts = torch.cat([predicted[:, :1], predicted[:, :-1]], dim=1)
    drafts[::2, 2] = (drafts[::2, 2] + 1) % vocab
    record = ops.accept_chain(
        drafts.to(device),
        torch.zeros(batch_size, dtype=torch.int32, device=device),
        target_logits=storage.to(device)[:, 1:],
        vocab_size=vocab,
    )
    expected = reference.accept_chain(
        drafts,
        torch.zeros(batch_size, dtype=torch.int32),
        target_predict=predicted.reshape(-1),
        vocab_size=vocab,
    )
    assert_same_record(record, expected)


def test_rows_past_the_cut_are_not_read(device: str) -> None:
    # Rows past verify_len hold NaN; status stays clean, and nothing of them shows.
    logits = torch.full((4, 8), math.nan, device=device)
    logits[:2] = 0.0
    logits[0, 5] = 1.0
    logits[1, 6] = 1.0
    record = ops.accept_chain(
        int32([[0, 5, 6, 7]], device=device),
        int32([0], device=device),
        target_logits=logits,
        verify_lens=int32([2], device=device),
    )
    assert record.out_tokens.tolist() == [[5, 6, -1, -1]]
    assert record.status.tolist() == [Status.OK]


def test_a_batch_is_its_requests(device: str) -> None:
    batch = random_batch(7, tree=False, batch=6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    whole = batch.run(ops.accept_chain, device)
    permuted = random_batch(7, tree=False, batch=6)
    permuted.draft_tokens = batch.draft_tokens[order]
    permuted.prefix_lens = batch.prefix_lens[order]
    for name in ("target_logits", "out_cache_loc"):
        rows = batch.options[name].view(6, 6, *batch.options[name].shape[1:])
        permuted.options[name] = rows[order].flatten(0, 1)
    permuted.options["verify_lens"] = batch.options["verify_lens"][order]
    rules = batch.options["finish"]
    permuted.options["finish"] = FinishRules(
        **{k: v if k == "eos_token_ids" else v[order] for k, v in vars(rules).items()}
    )
    again = permuted.run(ops.accept_chain, device)
    for name in ("out_tokens", "commit_lens", "status", "positions", "slots", "finish_reason"):
        assert torch.equal(getattr(whole, name).cpu()[order], getattr(again, name).cpu()), name


def test_a_padded_slot_with_stale_contents_changes_no_other(device: str) -> None:
    # Three requests in a graph of four: slot 3 holds what an earlier round left, a whole chain.
    predicted = [*(A, B, X), *(X, 0, 0), *(A, X, 0), *(A, B, X)]
    drafts, prefix_lens = [[1, A, B]] * 4, [10, 20, 30, 2**31 - 1]

    def record(slots: int, verify_lens: list[int]) -> AcceptRecord:
        return ops.accept_chain(
            int32(drafts[:slots], device=device),
            int32(prefix_lens[:slots], device=device),
            target_predict=int32(predicted[: 3 * slots], device=device),
            verify_lens=int32(verify_lens, device=device),
            out_cache_loc=torch.arange(3 * slots, device=device),
        )

    padded, alone = record(4, [3, 3, 3, 0]), record(3, [3, 3, 3])
    assert padded.commit_lens.tolist() == [3, 1, 2, 0]
    assert torch.equal(padded.per_request[:, :3], alone.per_request)
    assert torch.equal(padded.per_step[:, :3], alone.per_step)
    assert torch.equal(padded.predict[:9], alone.predict)
    assert padded.slots is not None
    assert alone.slots is not None
    assert torch.equal(padded.slots[:3], alone.slots)
    for stale in (padded.per_step[:, 3], padded.predict[9:], padded.slots[3], padded.bonus[3]):
        assert (stale == -1).all()


def test_padding_after_accepted_drafts_is_no_draft(device: str) -> None:
    record = chain([A, B, -1, -1], [A, B, X, 0, 0], device)
    assert record.out_tokens.tolist() == [[A, B, X, -1, -1]]
    assert record.num_correct_drafts.tolist() == [2]


def test_status_accumulates_on_request(device: str) -> None:
    batch = random_batch(3, tree=False, unsound=True)
    first = batch.run(ops.accept_chain, device)
    clean = first.status.clone()
    first.status.fill_(Status.BAD_PATH)
    batch.run(ops.accept_chain, device, out=first, accumulate_status=True)
    assert torch.equal(first.status, clean | Status.BAD_PATH)
    batch.run(ops.accept_chain, device, out=first)
    assert torch.equal(first.status, clean)


def sentinel_record(batch, device: str, fill: int) -> AcceptRecord:
    rows, (batch_size, nodes) = batch.options["target_logits"].shape[0], batch.draft_tokens.shape
    record = AcceptRecord.empty(
        batch_size, batch.options.get("width", nodes), rows, device, slots_dtype=torch.int64
    )
    for tensor in (record.per_request, record.per_step, record.predict, record.slots):
        assert tensor is not None
        tensor.fill_(fill)
    return record


def test_every_element_is_written_and_no_input_changes(device: str) -> None:
    batch = random_batch(11, tree=False, ragged=True, unsound=True)
    before = random_batch(11, tree=False, ragged=True, unsound=True)
    seven = batch.run(ops.accept_chain, device, out=sentinel_record(batch, device, 7))
    eight = batch.run(ops.accept_chain, device, out=sentinel_record(batch, device, 8))
    assert_same_record(seven, eight)
    assert torch.equal(batch.draft_tokens, before.draft_tokens)
    for name in ("qo_indptr", "verify_lens", "out_cache_loc"):
        assert torch.equal(batch.options[name], before.options[name])


def test_empty_batch(device: str) -> None:
    record = ops.accept_chain(
        torch.empty(0, 3, dtype=torch.int32, device=device),
        torch.empty(0, dtype=torch.int32, device=device),
        target_logits=torch.empty(0, 8, device=device),
    )
    assert record.out_tokens.shape == (0, 3)


ARGUMENTS = {
    "out with accumulate_status, got None": {"accumulate_status": True},
    "draft_tokens of dtype int32 or int64, got float32": {"draft_tokens": torch.zeros(2, 3)},
    r"prefix_lens of shape \[B=2\], got \[3\]": {"prefix_lens": int32([0, 0, 0])},
    r"target_logits of shape \[R=6, V\], got \[5, 8\]": {"target_logits": torch.zeros(5, 8)},
    "exactly one of target_logits and target_predict, got both": {"target_predict": int32([0] * 6)},
    "exactly one of target_logits and target_predict, got neither": {"target_logits": None},
    r"vocab_size in \[1, 8\], got 9": {"vocab_size": 9},
    r"vocab_size in \[1, 8\], got 0": {"vocab_size": 0},
    "target_logits with a dense last dimension, got stride 6": {
        "target_logits": torch.zeros(8, 6).t()
    },
    "verify_lens of dtype int32, got int64": {"verify_lens": torch.zeros(2, dtype=torch.int64)},
    "return_trim without qo_indptr": {"return_trim": True, "qo_indptr": int32([0, 3, 6])},
    "finish as FinishRules, got dict": {"finish": {"max_tokens_left": int32([3, 3])}},
    "finish.eos_token_ids as Tensor, got list": {"finish": FinishRules(eos_token_ids=[2])},
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    arguments = {
        "draft_tokens": torch.zeros(2, 3, dtype=torch.int32),
        "prefix_lens": torch.zeros(2, dtype=torch.int32),
        "target_logits": torch.zeros(6, 8),
    }
    arguments.update(ARGUMENTS[message])
    with pytest.raises(RuntimeError, match="accept_chain: expected " + message):
        ops.accept_chain(**arguments)


def test_opcheck(device: str) -> None:
    record = AcceptRecord.empty(1, 2, 2, device)
    torch.library.opcheck(
        torch.ops.specfast.accept_chain,
        (
            int32([[0, 1]], device=device),
            int32([3], device=device),
            torch.zeros(2, 4, device=device),
            *(None,) * 10,
            *(False, False),
            record.per_request,
            record.per_step,
            record.predict,
            None,
        ),
    )


def test_replay_follows_new_inputs() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    batches = [random_batch(seed, tree=False, batch=9, nodes=8, vocab=4) for seed in range(5)]
    static = [x.cuda() for x in (batches[0].draft_tokens, batches[0].options["target_logits"])]
    prefix_lens = batches[0].prefix_lens.cuda()
    record = AcceptRecord.empty(9, 8, 72, "cuda")

    def call() -> None:
        ops.accept_chain(static[0], prefix_lens, target_logits=static[1], vocab_size=4, out=record)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for batch in batches:
        static[0].copy_(batch.draft_tokens)
        static[1].copy_(batch.options["target_logits"])
        prefix_lens.copy_(batch.prefix_lens)
        graph.replay()
        expected = reference.accept_chain(
            batch.draft_tokens,
            batch.prefix_lens,
            target_logits=batch.options["target_logits"],
            vocab_size=4,
        )
        assert_same_record(record, expected)
