"""tree_from_parents: links, positions and mask of any tree whose parents come first.

          R 0          parents     [-, 0, 0, 1, 1]
        /     \\        first child [1, 3, -1, -1, -1]
      A 1     B 2      siblings    [-1, 2, -1, 4, -1]
     /   \\
   C 3   D 4
"""

from __future__ import annotations

import pytest
import torch
from guards import GuardedMemory, assert_records_equal, unchanged
from hypothesis import given
from hypothesis import strategies as st
from specfast import Status, TreeRecord, ops, reference
from torch import Tensor
from tree_batches import assert_legal_tree, random_candidates, unpack_bits, unsound_candidates

INT32_MAX = 2**31 - 1


def int32(*values: int, device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def tree(parents: list[int], device: str, *, prefix_len: int = 10, **more) -> TreeRecord:
    more = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in more.items()}
    return ops.tree_from_parents(
        torch.arange(10, 10 + len(parents), device=device)[None],
        torch.tensor([parents], device=device),
        int32(prefix_len, device=device),
        **more,
    )


def random_parents(
    seed: int, batch: int, num_nodes: int, *, spread: int = 5, sound: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, parents and prefix lengths; nodes hang at most ``spread`` before themselves."""
    rng = torch.Generator().manual_seed(seed)
    node = torch.arange(num_nodes).expand(batch, -1)
    back = 1 + torch.randint(0, spread, (batch, num_nodes), generator=rng)
    parents = (node - back).clamp(min=0)
    if not sound:
        wild = torch.randint(-3, num_nodes + 3, parents.shape, generator=rng)
        parents = torch.where(torch.rand(parents.shape, generator=rng) < 0.3, wild, parents)
    tokens = torch.randint(0, 1000, parents.shape, generator=rng)
    prefix_lens = torch.randint(0, 70, (batch,), generator=rng, dtype=torch.int32)
    return tokens, parents, prefix_lens


def full_capacity(prefix_lens: Tensor, num_nodes: int) -> int:
    return num_nodes * int((prefix_lens + num_nodes).sum())


def test_the_article_tree(device: str) -> None:
    record = tree([77, 0, 0, 1, 1], device)
    assert record.draft_tokens.tolist() == [[10, 11, 12, 13, 14]]
    assert record.parents.tolist() == [[-1, 0, 0, 1, 1]]
    assert record.retrieve_next_token.tolist() == [[1, 3, -1, -1, -1]]
    assert record.retrieve_next_sibling.tolist() == [[-1, 2, -1, 4, -1]]
    assert record.positions.tolist() == [[10, 11, 11, 12, 12]]
    assert record.mask.flatten().tolist() == [0b1, 0b11, 0b101, 0b1011, 0b10011]
    assert record.status.tolist() == [Status.OK]


def test_siblings_that_stand_apart(device: str) -> None:
    record = tree([-1, 0, 1, 0, 1, 2, 0], device)
    assert record.retrieve_next_token.tolist() == [[1, 2, 5, -1, -1, -1, -1]]
    assert record.retrieve_next_sibling.tolist() == [[-1, 3, 4, 6, -1, -1, -1]]


def test_the_three_forms_of_the_mask(device: str) -> None:
    expected = [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    parents = [-1, 0, 1]
    assert tree(parents, device).mask.tolist() == [[[0b1], [0b11], [0b111]]]
    assert tree(parents, device, mask_mode="qlen").mask.int().tolist() == [expected]
    full = tree(parents, device, prefix_len=2, mask_mode="full", mask_capacity=15)
    assert full.mask.int().view(3, 5).tolist() == [[1, 1, *row] for row in expected]


def test_a_detached_node_keeps_what_hangs_under_it(device: str) -> None:
    record = tree([-1, 0, 2, 2, 3, 1], device)
    assert record.status.tolist() == [Status.BAD_TREE]
    assert record.parents.tolist() == [[-1, 0, -1, 2, 3, 1]]
    assert record.retrieve_next_token.tolist() == [[1, 5, 3, 4, -1, -1]]
    assert record.positions.tolist() == [[10, 11, 11, 12, 13, 12]]
    assert record.mask.flatten().tolist() == [0b1, 0b11, 0b101, 0b1101, 0b11101, 0b100011]


@pytest.mark.parametrize("parent", [2, 3, 4, 5, -1, -(2**31), 2**31, 2**32, -(2**32)])
def test_a_parent_that_is_no_earlier_node(device: str, parent: int) -> None:
    record = tree([-1, 0, parent, 0, 0], device)
    assert record.parents.tolist() == [[-1, 0, -1, 0, 0]]
    assert record.retrieve_next_sibling.tolist() == [[-1, 3, -1, 4, -1]]
    assert record.status.tolist() == [Status.BAD_TREE]


@pytest.mark.parametrize(
    ("verify_len", "status"),
    [(3, Status.OK), (0, Status.OK), (5, Status.OK), (-1, Status.BAD_PARAM), (6, Status.BAD_PARAM)],
)
def test_padding_is_detached_without_a_flag(device: str, verify_len: int, status: int) -> None:
    parents = [-1, 0, 1, 0, 99] if verify_len == 3 else [-1, 0, 1, 0, 0]
    record = tree(parents, device, verify_lens=int32(verify_len))
    live = min(max(verify_len, 0), 5)
    kept = [-1, 0, 1, 0, 0][:live]
    assert record.parents.tolist() == [kept + [-1] * (5 - live)]
    assert record.status.tolist() == [status]
    assert record.draft_tokens.tolist() == [[10, 11, 12, 13, 14]]
    assert_legal_tree(record, int32(10))


@pytest.mark.parametrize("prefix_len", [-1, -(2**31), INT32_MAX, INT32_MAX - 2])
def test_a_prefix_length_out_of_range_counts_as_zero(device: str, prefix_len: int) -> None:
    record = tree([-1, 0, 1], device, prefix_len=prefix_len)
    assert record.positions.tolist() == [[0, 1, 2]]
    assert record.status.tolist() == [Status.BAD_PARAM]
    largest = tree([-1, 0, 1], device, prefix_len=INT32_MAX - 3)
    assert largest.positions.tolist() == [[INT32_MAX - 3, INT32_MAX - 2, INT32_MAX - 1]]
    assert largest.status.tolist() == [Status.OK]


@given(
    seed=st.integers(0, 2**31 - 1),
    num_nodes=st.integers(1, 70),
    spread=st.integers(1, 70),
    sound=st.booleans(),
    padded=st.booleans(),
)
def test_equals_the_reference(
    seed: int, num_nodes: int, spread: int, sound: bool, padded: bool
) -> None:
    arguments = random_parents(seed, 3, num_nodes, spread=spread, sound=sound)
    verify_lens = None
    if padded:
        rng = torch.Generator().manual_seed(seed)
        verify_lens = torch.randint(-1, num_nodes + 2, (3,), generator=rng, dtype=torch.int32)
    capacity = full_capacity(arguments[2], num_nodes)
    for mode, extra in (("bits", None), ("qlen", None), ("full", capacity)):
        more = {"verify_lens": verify_lens, "mask_mode": mode, "mask_capacity": extra}
        got = ops.tree_from_parents(*arguments, **more)
        assert_records_equal(got, reference.tree_from_parents(*arguments, **more))
    assert_legal_tree(ops.tree_from_parents(*arguments, verify_lens=verify_lens), arguments[2])


@given(seed=st.integers(0, 2**31 - 1), num_nodes=st.integers(1, 100))
def test_the_forms_of_the_mask_agree(seed: int, num_nodes: int) -> None:
    arguments = random_parents(seed, 3, num_nodes, spread=num_nodes)
    prefix_lens = arguments[2]
    bits = unpack_bits(ops.tree_from_parents(*arguments).mask, num_nodes)
    qlen = ops.tree_from_parents(*arguments, mask_mode="qlen").mask
    assert torch.equal(qlen, bits)
    full = ops.tree_from_parents(
        *arguments, mask_mode="full", mask_capacity=full_capacity(prefix_lens, num_nodes)
    ).mask
    rows = full.split([num_nodes * (n + num_nodes) for n in prefix_lens.tolist()])
    for b, prefix_len in enumerate(prefix_lens.tolist()):
        row = rows[b].view(num_nodes, prefix_len + num_nodes)
        assert row[:, :prefix_len].all()
        assert torch.equal(row[:, prefix_len:], bits[b])


@given(seed=st.integers(0, 2**31 - 1), unsound=st.booleans())
def test_a_built_tree_comes_back(seed: int, unsound: bool) -> None:
    candidates = (unsound_candidates if unsound else random_candidates)(seed)
    built = candidates.select_and_build(ops.select_and_build_tree, 14)
    again = ops.tree_from_parents(built.draft_tokens, built.parents, candidates.prefix_lens)
    assert_records_equal(again, built)


@pytest.mark.parametrize("mode", ["bits", "qlen", "full"])
@pytest.mark.parametrize("num_nodes", [1, 31, 32, 33, 64, 1024])
@pytest.mark.parametrize("spread", [1, 3, 1024])
def test_sizes(device: str, num_nodes: int, spread: int, mode: str) -> None:
    arguments = random_parents(num_nodes, 2, num_nodes, spread=spread)
    capacity = full_capacity(arguments[2], num_nodes) if mode == "full" else None
    more = {"mask_mode": mode, "mask_capacity": capacity}
    got = ops.tree_from_parents(*(x.to(device) for x in arguments), **more)
    assert_records_equal(got, reference.tree_from_parents(*arguments, **more))


@pytest.mark.parametrize("missing", [1, 100])
def test_a_full_mask_that_does_not_fit(device: str, missing: int) -> None:
    prefix_lens = int32(3, -5, 40, 2)
    tokens, parents, _ = random_parents(1, 4, 6)
    needed = 6 * (3 + 6 + 0 + 6 + 40 + 6 + 2 + 6)
    fits_until = 6 * (3 + 6 + 0 + 6)
    last_request = 6 * (2 + 6)
    memory = GuardedMemory(device, fill=0x11)  # bool elements start as 1
    out = memory.like(
        TreeRecord.empty(4, 6, device, mask_mode="full", mask_capacity=needed - missing)
    )
    ops.tree_from_parents(
        tokens.to(device), parents.to(device), prefix_lens.to(device), mask_mode="full", out=out
    )
    memory.check()
    bad = Status.BAD_PARAM
    third = Status.OK if missing <= last_request else bad
    assert out.status.tolist() == [Status.OK, bad, third, bad]
    expected = reference.tree_from_parents(
        tokens, parents, prefix_lens, mask_mode="full", mask_capacity=needed
    )
    written = needed - last_request if missing <= last_request else fits_until
    assert torch.equal(out.mask[:written].cpu(), expected.mask[:written])
    assert out.mask[written:].all(), "a byte of a request that does not fit was written"


def test_only_the_live_batch_is_written(device: str) -> None:
    memory = GuardedMemory(device, fill=0x11)
    out = memory.like(TreeRecord.empty(1, 4, device, mask_mode="full", mask_capacity=1 << 20))
    ops.tree_from_parents(
        torch.zeros(1, 4, dtype=torch.int64, device=device),
        torch.zeros(1, 4, dtype=torch.int64, device=device),
        int32(5, device=device),
        mask_mode="full",
        out=out,
    )
    assert out.mask[4 * 9 :].all()
    assert out.mask[: 4 * 9].int().sum() == 4 * 5 + 7


def test_a_long_prefix(device: str) -> None:
    tokens, parents, _ = random_parents(2, 2, 5)
    prefix_lens = int32(4099, 100_003)
    more = {"mask_mode": "full", "mask_capacity": full_capacity(prefix_lens, 5) + 9}
    arguments = (tokens, parents, prefix_lens)
    got = ops.tree_from_parents(*(x.to(device) for x in arguments), **more)
    live = full_capacity(prefix_lens, 5)
    expected = reference.tree_from_parents(*arguments, **more)
    assert torch.equal(got.mask[:live].cpu(), expected.mask[:live])


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(4):
        arguments = tuple(x.to(device) for x in random_parents(seed, 3, 37, sound=False))
        capacity = full_capacity(arguments[2], 37)
        for mode, extra in (("bits", None), ("qlen", None), ("full", capacity)):
            template = TreeRecord.empty(3, 37, device, mask_mode=mode, mask_capacity=extra)
            records = []
            for fill in (0x5C, 0x11):
                memory = GuardedMemory(device, fill)
                out = memory.like(template)
                with unchanged(*arguments):
                    returned = ops.tree_from_parents(*arguments, mask_mode=mode, out=out)
                assert returned is out
                memory.check()
                records.append(out)
            assert_records_equal(*records)


def test_a_mask_at_any_address(device: str) -> None:
    tokens, parents, prefix_lens = random_parents(4, 2, 19)
    expected = reference.tree_from_parents(tokens, parents, prefix_lens, mask_mode="qlen")
    for offset in range(17):
        out = TreeRecord.empty(2, 19, device, mask_mode="qlen")
        room = torch.zeros(2 * 19 * 19 + 17, dtype=torch.bool, device=device)
        out.mask = room[offset : offset + 2 * 19 * 19].view(2, 19, 19)
        ops.tree_from_parents(
            tokens.to(device), parents.to(device), prefix_lens.to(device), mask_mode="qlen", out=out
        )
        assert torch.equal(out.mask.cpu(), expected.mask)


def test_strided_rows_and_both_index_types(device: str) -> None:
    tokens, parents, prefix_lens = (x.to(device) for x in random_parents(6, 3, 8))
    expected = ops.tree_from_parents(tokens, parents, prefix_lens)
    wide = torch.full((3, 20), 99, dtype=torch.int32, device=device)
    wide[:, 3:11] = parents
    got = ops.tree_from_parents(tokens.repeat(1, 2)[:, :8], wide[:, 3:11], prefix_lens)
    assert_records_equal(got, expected)


def test_empty_batch(device: str) -> None:
    empty = torch.zeros(0, 7, dtype=torch.int64, device=device)
    record = ops.tree_from_parents(
        empty, empty, int32(device=device), mask_mode="full", mask_capacity=0
    )
    assert record.status.shape == (0,)


ARGUMENTS = {
    r"draft_tokens of shape \[B, N\], got \[5\]": {
        "draft_tokens": torch.zeros(5, dtype=torch.int64),
        "out": TreeRecord.empty(2, 5, "cpu"),
    },
    r"parents of shape \[B=2, N=5\], got \[2, 4\]": {
        "parents": torch.zeros(2, 4, dtype=torch.int64)
    },
    "parents with a dense last dimension, got stride 2": {
        "parents": torch.zeros(2, 10, dtype=torch.int64)[:, ::2]
    },
    r"verify_lens of shape \[B=2\], got \[1\]": {"verify_lens": int32(1)},
    r"the number of nodes N in \[1, 1024\], got 0": {
        "draft_tokens": torch.zeros(2, 0, dtype=torch.int64),
        "parents": torch.zeros(2, 0, dtype=torch.int64),
    },
    r"out.mask of shape \[capacity\], got \[2, 5, 5\]": {
        "mask_mode": "full",
        "out": TreeRecord.empty(2, 5, "cpu", mask_mode="qlen"),
    },
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    arguments = {
        "draft_tokens": torch.zeros(2, 5, dtype=torch.int64),
        "parents": torch.zeros(2, 5, dtype=torch.int64),
        "prefix_lens": torch.zeros(2, dtype=torch.int32),
    }
    arguments.update(ARGUMENTS[message])
    with pytest.raises(RuntimeError, match="tree_from_parents: expected " + message):
        ops.tree_from_parents(**arguments)


def test_opcheck(device: str) -> None:
    arguments = tuple(x.to(device) for x in random_parents(1, 2, 5))
    record = TreeRecord.empty(2, 5, device)
    verify_lens = int32(5, 4, device=device)
    torch.library.opcheck(
        torch.ops.specfast.tree_from_parents,
        (*arguments, verify_lens, "bits", *vars(record).values()),
    )


def test_capture_and_replay(device: str) -> None:
    if device == "cpu":
        pytest.skip("a CUDA Graph needs a GPU")
    static = tuple(x.to(device) for x in random_parents(0, 3, 40))
    out = TreeRecord.empty(3, 40, device, mask_mode="qlen")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.tree_from_parents(*static, mask_mode="qlen", out=out)
    for seed in range(20):
        fresh = random_parents(seed, 3, 40, sound=False)
        for tensor, values in zip(static, fresh, strict=True):
            tensor.copy_(values)
        graph.replay()
        assert_records_equal(out, reference.tree_from_parents(*fresh, mask_mode="qlen"))
