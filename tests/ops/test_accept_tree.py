"""accept_tree: the path of a draft tree that the target follows.

               R 0                 the target says    R -> A, A -> C, C -> X
             /     \\               accept_index       [0, 1, 3]  rows that now have their KV
           A 1     B 2             out_tokens         [A, C, X]  X has none yet
          /   \\
        C 3   D 4
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from accept_batches import AcceptBatch, assert_same_record, int32, random_batch
from guards import GuardedMemory, assert_records_equal, unchanged
from hypothesis import given
from hypothesis import strategies as st
from specfast import AcceptRecord, FinishRules, Status, ops, reference

R, A, B, C, D, X = 1, 10, 11, 12, 13, 77
TOKENS = [R, A, B, C, D]
NEXT_TOKEN = [1, 3, -1, -1, -1]
NEXT_SIBLING = [-1, 2, -1, 4, -1]


def accept(
    predicted: list[int],
    device: str,
    *,
    tokens: list[int] = TOKENS,
    next_token: list[int] = NEXT_TOKEN,
    next_sibling: list[int] = NEXT_SIBLING,
    width: int = 3,
    **options,
) -> AcceptRecord:
    return ops.accept_tree(
        *(int32([row], device=device) for row in (tokens, next_token, next_sibling)),
        int32([10], device=device),
        width=width,
        target_predict=int32(predicted, device=device),
        **{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()},
    )


def test_the_article_tree(device: str) -> None:
    record = accept([A, C, 0, X, 0], device)
    assert record.accept_index.tolist() == [[0, 1, 3]]
    assert record.out_tokens.tolist() == [[A, C, X]]
    assert record.predict.tolist() == [A, C, -1, X, -1]
    assert record.num_correct_drafts.tolist() == [2]
    assert record.new_seq_lens.tolist() == [13]


def test_the_field_s_names_agree(device: str) -> None:
    given = int32([A, C, 0, X, 0], device=device)
    links = [int32([row], device=device) for row in (NEXT_TOKEN, NEXT_SIBLING)]
    tree = ops.verify_tree_greedy(
        int32([TOKENS], device=device),
        int32([[0, 1, 2, 3, 4]], device=device),
        *links,
        given,
        width=3,
    )
    assert tree.out_tokens.tolist() == [[A, C, X]]
    chain = ops.verify_chain_greedy(
        int32([[R, A, B]], device=device), int32([A, X, 0], device=device)
    )
    assert chain.num_correct_drafts.tolist() == [1]
    assert chain.bonus.tolist() == [X]


def test_second_sibling_and_no_match(device: str) -> None:
    record = accept([B, 0, X, 0, 0], device)
    assert record.accept_index.tolist() == [[0, 2, -1]]
    assert record.out_tokens.tolist() == [[B, X, -1]]
    assert accept([X, 0, 0, 0, 0], device).out_tokens.tolist() == [[X, -1, -1]]


def test_the_first_of_equal_siblings_wins(device: str) -> None:
    record = accept([A, D, X, 0, 0], device, tokens=[R, A, A, C, D])
    assert record.accept_index.tolist() == [[0, 1, 4]]


def test_width_ends_the_path(device: str) -> None:
    record = accept([A, C, 0, X, 0], device, width=2)
    assert record.accept_index.tolist() == [[0, 1]]
    assert record.out_tokens.tolist() == [[A, C]]


def test_forty_siblings(device: str) -> None:
    tokens = list(range(100, 141))
    record = accept(
        [140] + [X] * 40,
        device,
        tokens=tokens,
        next_token=[1] + [-1] * 40,
        next_sibling=[-1, *range(2, 41), -1],
        width=2,
    )
    assert record.accept_index.tolist() == [[0, 40]]


def test_nodes_past_the_cut_do_not_exist(device: str) -> None:
    record = accept([A, C, 0, X, 0], device, verify_lens=int32([3]))
    assert record.accept_index.tolist() == [[0, 1, -1]]
    assert record.out_tokens.tolist() == [[A, C, -1]]
    assert record.status.tolist() == [Status.OK]


BAD_LINKS = {
    "child is its own parent": ({"next_token": [1, 1, -1, -1, -1]}, [0, 1]),
    "child before its parent": ({"next_token": [2, -1, 1, -1, -1]}, [0, 2]),
    "child out of range": ({"next_token": [1, 5, -1, -1, -1]}, [0, 1]),
    "negative child": ({"next_token": [1, -2, -1, -1, -1]}, [0, 1]),
    "siblings in a circle": ({"next_sibling": [-1, 2, -1, 4, 3]}, [0, 1]),
}


@pytest.mark.parametrize("name", BAD_LINKS)
def test_malformed_links_end_the_search(device: str, name: str) -> None:
    links, rows = BAD_LINKS[name]
    first = B if rows[-1] == 2 else A
    record = accept([first, 99, 99, X, X], device, **links)
    assert record.accept_index[0, : len(rows)].tolist() == rows
    assert record.accept_lens.tolist() == [len(rows)]
    assert record.status.tolist() == [Status.BAD_TREE]


def test_bonus_is_read_with_the_path_width(device: str) -> None:
    # Two requests of five nodes, path width three: request 1 accepts rows 5 and 7.
    links = [int32([[2, -1, -1, -1, -1]] * 2), int32([[-1] * 5] * 2)]
    predicted = int32([0, 0, 0, 0, 0, 8, 0, 9, 0, 0])
    record = ops.accept_tree(
        int32([[1, 5, 8, 5, 5]] * 2, device=device),
        *(x.to(device) for x in links),
        int32([4, 6], device=device),
        width=3,
        target_predict=predicted.to(device),
    )
    assert record.accept_index.tolist() == [[0, -1, -1], [5, 7, -1]]
    assert record.bonus.tolist() == [0, 9]


def test_retrieve_index_maps_nodes_to_rows(device: str) -> None:
    record = accept([A, 0, C, 0, X], device, retrieve_index=int32([[0, 2, 1, 4, 3]]))
    assert record.accept_index.tolist() == [[0, 2, 4]]
    assert record.out_tokens.tolist() == [[A, C, X]]


@pytest.mark.parametrize("row_of_c", [0, 1, 2, -1, 5])
def test_rows_of_a_path_ascend_within_the_request(device: str, row_of_c: int) -> None:
    index = int32([[0, 2, 3, row_of_c, 4]])
    record = accept([A, X, C, X, X], device, retrieve_index=index)
    assert record.accept_index.tolist() == [[0, 2, -1]]
    assert record.out_tokens.tolist() == [[A, C, -1]]
    assert record.status.tolist() == [Status.BAD_TREE]


def test_the_row_of_a_node_was_verified(device: str) -> None:
    index = int32([[0, 3, 1, 2, 4]])
    record = accept([A, 0, 0, X, 0], device, retrieve_index=index, verify_lens=int32([3]))
    assert record.accept_index.tolist() == [[0, -1, -1]]
    assert record.status.tolist() == [Status.BAD_TREE]


@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, from_logits: bool, ragged: bool, unsound: bool) -> None:
    for seed in range(60):
        batch = random_batch(
            seed, tree=True, nodes=9, from_logits=from_logits, ragged=ragged, unsound=unsound
        )
        assert_same_record(batch.run(ops.accept_tree, device), batch.run(reference.accept_tree))


@pytest.mark.parametrize("batch_size", [1, 8, 9, 33, 65])
def test_every_launch_shape(device: str, batch_size: int) -> None:
    batch = random_batch(1, tree=True, batch=batch_size, nodes=24, vocab=300)
    assert_same_record(batch.run(ops.accept_tree, device), batch.run(reference.accept_tree))


@given(seed=st.integers(0, 2**31 - 1), ragged=st.booleans())
def test_a_tree_without_branches_is_a_chain(seed: int, ragged: bool) -> None:
    chain = random_batch(seed, tree=False, ragged=ragged, unsound=bool(seed % 2))
    batch_size, nodes = chain.draft_tokens.shape
    following = torch.arange(1, nodes + 1, dtype=torch.int32).repeat(batch_size, 1)
    following[:, -1] = -1
    links = (following, torch.full_like(following, -1))
    tree = AcceptBatch(
        chain.draft_tokens, chain.prefix_lens, links, chain.options | {"width": nodes}
    )
    assert_same_record(tree.run(ops.accept_tree), chain.run(ops.accept_chain))


@given(seed=st.integers(0, 2**31 - 1))
def test_committed_rows_are_a_root_path(seed: int) -> None:
    batch = random_batch(seed, tree=True, nodes=9, unsound=bool(seed % 2), finish=False)
    record = batch.run(ops.accept_tree)
    next_token, next_sibling = batch.links
    for b, accept_len in enumerate(record.accept_lens.tolist()):
        rows = record.accept_index[b, :accept_len].tolist()
        assert (record.accept_index[b, accept_len:] == -1).all()
        assert record.commit_lens[b] == accept_len
        assert record.predict[rows].tolist() == record.out_tokens[b, :accept_len].tolist()
        if "retrieve_index" in batch.options:
            continue
        nodes = [row - b * 9 for row in rows]
        for parent, child in pairwise(nodes):
            sibling = int(next_token[b, parent])
            while sibling != child:
                sibling = int(next_sibling[b, sibling])
        drafts = batch.draft_tokens[b, nodes[1:]].tolist()
        assert drafts == record.out_tokens[b, : accept_len - 1].tolist()


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(8):
        batch = random_batch(seed, tree=True, nodes=9, ragged=bool(seed % 2), unsound=True)
        template = batch.run(ops.accept_tree, device)
        records = []
        for fill in (0x5C, 0x11):
            memory = GuardedMemory(device, fill)
            out = memory.like(template)
            with unchanged(batch.draft_tokens, *batch.links, batch.prefix_lens):
                batch.run(ops.accept_tree, device, out=out)
            memory.check()
            records.append(out)
        assert_records_equal(*records)


@pytest.mark.parametrize("nodes", [1, 1024])
def test_smallest_and_largest_tree(device: str, nodes: int) -> None:
    following = torch.arange(1, nodes + 1, dtype=torch.int32)
    following[-1] = -1
    record = ops.accept_tree(
        torch.arange(nodes, dtype=torch.int64, device=device)[None],
        following[None].to(device),
        torch.full((1, nodes), -1, dtype=torch.int32, device=device),
        int32([0], device=device),
        width=nodes,
        target_predict=torch.arange(1, nodes + 1, device=device),
    )
    assert record.accept_lens.tolist() == [nodes]
    assert record.bonus.tolist() == [nodes]


def test_rows_beyond_two_to_the_31_elements(device: str) -> None:
    if device == "cpu":
        pytest.skip("4 GB of address space for three rows: the GPU has it to spare")
    for row_stride in (2**30 + 8, 2**31 + 8):
        logits = torch.empty(2 * row_stride + 8, dtype=torch.bfloat16, device=device)
        rows = logits.as_strided((3, 8), (row_stride, 1))
        rows.fill_(0)
        rows[0, 3] = rows[1, 4] = rows[2, 5] = 1
        record = ops.accept_chain(
            int32([[0, 3, 4]], device=device), int32([0], device=device), target_logits=rows
        )
        assert record.out_tokens.tolist() == [[3, 4, 5]]


ARGUMENTS = {
    "out with accumulate_status, got None": {"accumulate_status": True},
    r"retrieve_next_token of shape \[B=2, N=3\], got \[2, 4\]": {
        "retrieve_next_token": torch.zeros(2, 4, dtype=torch.int32)
    },
    "retrieve_next_sibling of dtype int32, got int64": {
        "retrieve_next_sibling": torch.zeros(2, 3, dtype=torch.int64)
    },
    r"the path width S of out.per_step in \[1, 3\], got 4": {"width": 4},
    r"finish.stop_token_ids of shape \[B=2, K\], got \[3, 1\]": {
        "finish": FinishRules(stop_token_ids=torch.zeros(3, 1, dtype=torch.int32))
    },
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    arguments = {
        "draft_tokens": torch.zeros(2, 3, dtype=torch.int32),
        "retrieve_next_token": torch.full((2, 3), -1, dtype=torch.int32),
        "retrieve_next_sibling": torch.full((2, 3), -1, dtype=torch.int32),
        "prefix_lens": torch.zeros(2, dtype=torch.int32),
        "width": 2,
        "target_logits": torch.zeros(6, 8),
    }
    arguments.update(ARGUMENTS[message])
    with pytest.raises(RuntimeError, match="accept_tree: expected " + message):
        ops.accept_tree(**arguments)


def test_opcheck(device: str) -> None:
    record = AcceptRecord.empty(1, 2, 5, device, slots_dtype=torch.int32)
    torch.library.opcheck(
        torch.ops.specfast.accept_tree,
        (
            *(int32([row], device=device) for row in (TOKENS, NEXT_TOKEN, NEXT_SIBLING)),
            int32([3], device=device),
            None,
            torch.zeros(5, 4, device=device),
            *(None,) * 9,
            int32([0] * 5, device=device),
            False,
            record.per_request,
            record.per_step,
            record.predict,
            record.slots,
        ),
    )
