"""What the loader refuses, and in which words; what it reads in spite of its dress."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.checkpoints import make_target, vocabulary_map
from drafters.eagle_files import EagleCase, eagle3_cases, eagle_cases
from safetensors.torch import load_file, save_file
from specfast.drafters.checkpoint import CheckpointFiles, DrafterError, TargetSizes, read_spec
from specfast.drafters.checkpoint.spec import DrafterSpec
from specfast.drafters.checkpoint.target import match_target
from specfast.drafters.checkpoint.weights import EMBEDDING, LM_HEAD
from specfast.drafters.loader import load_drafter
from torch import Tensor

CASES = {case.name: case for case in [*eagle3_cases(), *eagle_cases()]}
TARGET = make_target(CASES["deepspec"].sizes)


def changed_config(path: Path, case: EagleCase, **changes: Any) -> Path:
    """``case`` on disk with fields of its config replaced, or left out where they are None."""
    case.write(path)
    config = {**case.config, **changes}
    config = {name: value for name, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    return path


def changed_tensors(
    path: Path, case: EagleCase, change: Callable[[dict[str, Tensor]], Any]
) -> Path:
    case.write(path)
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


def refusal(path: Path, target: Any = TARGET) -> str:
    with pytest.raises(DrafterError) as caught:
        load_drafter(path, target)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("comment", ["", "x" * 8])
def test_tensors_begin_where_ops_expect_it(comment: str, tmp_path: Path) -> None:
    """Those of a file lie behind a header of any length."""
    path = CASES["deepspec"].write(tmp_path)
    tensors = load_file(path / "model.safetensors")
    save_file(tensors, path / "model.safetensors", metadata={"comment": comment})
    weights = load_drafter(path, TARGET).weights
    assert {tensor.data_ptr() % 16 for tensor in weights._tensors.values()} == {0}


def test_tensors_lie_as_ops_expect_it(tmp_path: Path) -> None:
    """Those of a pickle may be views of anything."""
    path = CASES["deepspec"].write(tmp_path)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    strided = {name: tensor.repeat_interleave(2, -1)[..., ::2] for name, tensor in tensors.items()}
    torch.save(strided, path / "pytorch_model.bin")
    weights = load_drafter(path, TARGET).weights
    assert all(tensor.is_contiguous() for tensor in weights._tensors.values())


class TestFiles:
    def test_no_directory(self, tmp_path: Path) -> None:
        assert "does not exist" in refusal(tmp_path / "none")
        (tmp_path / "file").write_text("")
        assert "is a file" in refusal(tmp_path / "file")

    def test_no_config(self, tmp_path: Path) -> None:
        assert "has no config.json" in refusal(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]", "\x00"])
    def test_config_is_no_object(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(text)
        assert "config.json" in refusal(tmp_path)

    def test_no_weights(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        assert "holds no weights" in refusal(tmp_path)

    @pytest.mark.parametrize("name", ["deepspec", "safeailab"])
    def test_cut_off(self, name: str, tmp_path: Path) -> None:
        CASES[name].write(tmp_path)
        (file,) = (f for f in tmp_path.iterdir() if f.name != "config.json")
        file.write_bytes(file.read_bytes()[:200])
        assert str(file) in refusal(tmp_path)

    def test_a_pickle_runs_nothing(self, tmp_path: Path) -> None:
        class Command:
            def __reduce__(self) -> Any:
                return (Path.touch, (tmp_path / "ran",))

        CASES["safeailab"].write(tmp_path)
        torch.save({"fc.weight": Command()}, tmp_path / "pytorch_model.bin")
        assert "pytorch_model.bin" in refusal(tmp_path)
        assert not (tmp_path / "ran").exists()

    def test_a_pickle_of_the_first_form(self, tmp_path: Path) -> None:
        CASES["safeailab"].write(tmp_path)
        file = tmp_path / "pytorch_model.bin"
        torch.save(torch.load(file), file, _use_new_zipfile_serialization=False)
        load_drafter(tmp_path, TARGET)

    def test_shards(self, tmp_path: Path) -> None:
        case = CASES["deepspec"]
        whole = load_drafter(case.write(tmp_path), TARGET)
        tensors = load_file(tmp_path / "model.safetensors")
        (tmp_path / "model.safetensors").unlink()
        names = sorted(tensors)
        places = {
            name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)
        }
        for file in set(places.values()):
            save_file({n: tensors[n] for n in names if places[n] == file}, tmp_path / file)
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}))
        sharded = load_drafter(tmp_path, TARGET)
        assert sharded.spec == whole.spec
        assert torch.equal(sharded.weights["fc.weight"], whole.weights["fc.weight"])
        (tmp_path / places[names[0]]).unlink()
        assert places[names[0]] in refusal(tmp_path)


class TestTensors:
    def test_unknown(self, tmp_path: Path) -> None:
        def add(tensors: dict[str, Tensor]) -> None:
            tensors["layers.0.self_attn.sinks"] = torch.zeros(4)

        path = changed_tensors(tmp_path, CASES["nested-aux-ids"], add)
        assert "unknown: layers.0.self_attn.sinks" in refusal(path)

    def test_query_norms_are_not_dropped(self, tmp_path: Path) -> None:
        def add(tensors: dict[str, Tensor]) -> None:
            tensors["layers.0.self_attn.q_norm.weight"] = torch.ones(6)

        path = changed_tensors(tmp_path, CASES["nested-aux-ids"], add)
        assert "missing: layers.0.self_attn.k_norm.weight" in refusal(path)

    @pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "lm_head.weight"])
    def test_missing(self, name: str, tmp_path: Path) -> None:
        path = changed_tensors(tmp_path, CASES["nested-aux-ids"], lambda t: t.pop(name))
        assert f"missing: {name}" in refusal(path)

    def test_a_reduced_vocabulary_needs_its_map(self, tmp_path: Path) -> None:
        path = changed_tensors(tmp_path, CASES["eagle-3.1"], lambda t: t.pop("d2t"))
        assert "missing: d2t" in refusal(path)

    def test_misshaped(self, tmp_path: Path) -> None:
        def cut(tensors: dict[str, Tensor]) -> None:
            tensors["fc.weight"] = tensors["fc.weight"][:, :24].clone()

        path = changed_tensors(tmp_path, CASES["nested-aux-ids"], cut)
        assert "fc.weight is [12, 24] instead of [12, 36]" in refusal(path)

    def test_two_names_for_one(self, tmp_path: Path) -> None:
        def twice(tensors: dict[str, Tensor]) -> None:
            tensors["model.fc.weight"] = tensors["fc.weight"].clone()

        path = changed_tensors(tmp_path, CASES["nested-aux-ids"], twice)
        message = refusal(path)
        assert "fc.weight and model.fc.weight" in message or (
            "model.fc.weight and fc.weight" in message
        )

    def test_quantised(self, tmp_path: Path) -> None:
        def quantise(tensors: dict[str, Tensor]) -> None:
            tensors["fc.weight"] = tensors["fc.weight"].to(torch.int8)

        path = changed_tensors(tmp_path, CASES["nested-aux-ids"], quantise)
        assert "fc.weight holds torch.int8" in refusal(path)

    def test_half_precision_is_widened(self, tmp_path: Path) -> None:
        def narrow(tensors: dict[str, Tensor]) -> None:
            tensors["fc.weight"] = tensors["fc.weight"].to(torch.bfloat16)

        path = changed_tensors(tmp_path, CASES["nested-aux-ids"], narrow)
        assert load_drafter(path, TARGET).weights["fc.weight"].dtype == torch.float32

    def test_buffers_that_nobody_reads(self, tmp_path: Path) -> None:
        def add(tensors: dict[str, Tensor]) -> None:
            tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(3)

        load_drafter(changed_tensors(tmp_path, CASES["nested-aux-ids"], add), TARGET)


class TestVocabularyMap:
    case = CASES["eagle-3.1"]

    def change_map(self, path: Path, name: str, change: Callable[[Tensor], Tensor]) -> Path:
        def apply(tensors: dict[str, Tensor]) -> None:
            tensors[name] = change(tensors[name])

        return changed_tensors(path, self.case, apply)

    def test_absolute_ids_are_noticed(self, tmp_path: Path) -> None:
        path = self.change_map(tmp_path, "d2t", lambda d2t: d2t + torch.arange(len(d2t)))
        assert "d2t" in refusal(path)

    def test_outside_of_the_vocabulary(self, tmp_path: Path) -> None:
        path = self.change_map(tmp_path, "d2t", lambda d2t: d2t + 24)
        assert "outside of the vocabulary of 40" in refusal(path)

    def test_two_ids_for_one(self, tmp_path: Path) -> None:
        def repeat(d2t: Tensor) -> Tensor:
            return torch.cat([d2t[:1], d2t[:1] - 1, d2t[2:]])

        assert "two draft ids" in refusal(self.change_map(tmp_path, "d2t", repeat))

    def test_t2d_differs(self, tmp_path: Path) -> None:
        path = self.change_map(tmp_path, "t2d", lambda t2d: t2d.roll(1))
        assert "d2t and t2d" in refusal(path)

    def test_any_order_is_sorted(self, tmp_path: Path) -> None:
        sorted_model = load_drafter(self.case.write(tmp_path / "sorted"), TARGET)
        order = torch.randperm(17, generator=torch.Generator().manual_seed(1))

        def shuffle(tensors: dict[str, Tensor]) -> None:
            numbers = torch.arange(17)
            tensors["d2t"] = (tensors["d2t"] + numbers)[order] - numbers
            tensors["lm_head.weight"] = tensors["lm_head.weight"][order]

        model = load_drafter(changed_tensors(tmp_path / "shuffled", self.case, shuffle), TARGET)
        for name in ("d2t", LM_HEAD):
            assert torch.equal(model.weights[name], sorted_model.weights[name])

    def test_length_of_d2t_stands_in_for_the_config(self, tmp_path: Path) -> None:
        path = changed_config(tmp_path, self.case, draft_vocab_size=None)
        spec = load_drafter(path, TARGET).spec
        assert spec.draft_vocab_size == len(vocabulary_map(self.case.sizes)[0])
        assert any("the length of d2t" in sentence for sentence in spec.readings)


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"hidden_size": None}, "hidden_size is missing"),
            ({"hidden_size": "12"}, "hidden_size to be an integer of at least 1, got '12'"),
            ({"num_hidden_layers": 2}, "num_hidden_layers = 2"),
            ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
            ({"rms_norm_eps": -1.0}, "rms_norm_eps to be a positive number"),
            ({"rms_norm_eps": 10**400}, "rms_norm_eps to be a positive number"),
            ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
            ({"use_gemma_norm": True}, "use_gemma_norm = True is not supported"),
            ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn' are not supported"),
            ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta is given as 700.0 and as 5.0"),
            ({"rope_parameters": {"rope_dim": 7}}, "rope_dim"),
            ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
            ({"draft_vocab_size": 41}, "draft_vocab_size 41 is larger than vocab_size 40"),
            ({"hot_vocab_size": 9}, "hot_vocab_size"),
            ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
            ({"eagle_config": []}, "eagle_config to be an object"),
            ({"num_aux_hidden_states": 4}, "num_aux_hidden_states is 4"),
            ({"target_layer_ids": [1, 1, 2]}, "distinct layer ids"),
            ({"architectures": ["Gemma4Eagle3Model"]}, "Gemma4Eagle3Model is not supported"),
            ({"speculators_model_type": "peagle"}, "'peagle'"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
        assert words in refusal(changed_config(tmp_path, CASES["nested-aux-ids"], **changes))

    def test_an_ordinary_model(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
        assert "no drafter" in refusal(tmp_path)


def spec_with(tmp_path: Path, **changes: Any) -> DrafterSpec:
    path = changed_config(tmp_path, CASES["nested-aux-ids"], **changes)
    return match_target(read_spec(CheckpointFiles(path)), TARGET.sizes)


class TestTaps:
    """One set of taps, h(2), h(6) and h(11), in each spelling."""

    after, before = [2, 6, 11], [3, 7, 12]

    @pytest.mark.parametrize(
        "spelling",
        [
            {"target_layer_ids": after},
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": after}},
            {"eagle_aux_hidden_state_layer_ids": before},
            {"aux_hidden_state_layer_ids": before},
            {"target_layer_ids": after, "eagle_aux_hidden_state_layer_ids": before},
        ],
    )
    def test_conventions(self, spelling: dict[str, Any], tmp_path: Path) -> None:
        spec = spec_with(tmp_path, **{"eagle_config": None, **spelling})
        assert spec.taps is not None
        assert spec.taps.layers == (2, 6, 11)
        # Alone, a field that others read otherwise is said to be read so.
        told = any("is read as the inputs" in sentence for sentence in spec.readings)
        assert told == (len(spelling) == 1 and any("aux" in name for name in spelling))

    def test_two_sets(self, tmp_path: Path) -> None:
        path = changed_config(
            tmp_path, CASES["nested-aux-ids"], eagle_aux_hidden_state_layer_ids=[2, 6, 11]
        )
        message = refusal(path)
        assert "[2, 6, 11]" in message
        assert "[1, 5, 10]" in message

    @pytest.mark.parametrize("num_layers", [12, 32, 36, 48])
    def test_default_of_eagle3(self, num_layers: int, tmp_path: Path) -> None:
        path = changed_config(tmp_path, CASES["nested-aux-ids"], eagle_config=None)
        spec = match_target(
            read_spec(CheckpointFiles(path)), replace(TARGET.sizes, num_layers=num_layers)
        )
        assert spec.taps is not None
        assert spec.taps.layers is not None
        # The inputs of layers 2, n // 2 and n - 3.
        assert [k + 1 for k in spec.taps.layers] == [2, num_layers // 2, num_layers - 3]

    def test_order_is_that_of_the_list(self, tmp_path: Path) -> None:
        nested = {"eagle_aux_hidden_state_layer_ids": [9, 0, 4]}
        spec = spec_with(tmp_path, eagle_config=nested)
        assert spec.taps is not None
        assert spec.taps.layers == (9, 0, 4)


class TestTarget:
    @pytest.mark.parametrize(
        ("sizes", "words"),
        [
            (TargetSizes(16, 40, 12), ("hidden size 12", "has 16")),
            (TargetSizes(12, 48, 12), ("vocabulary 40", "has 48")),
            (TargetSizes(12, 40, 11), ("[2, 6, 11]", "0 to 10")),
        ],
    )
    def test_mismatch(self, sizes: TargetSizes, words: tuple[str, ...], tmp_path: Path) -> None:
        message = refusal(CASES["nested-aux-ids"].write(tmp_path), replace(TARGET, sizes=sizes))
        assert all(word in message for word in words), message

    def test_number_of_layers(self, tmp_path: Path) -> None:
        target = replace(TARGET, sizes=TargetSizes(12, 40, 14))
        message = refusal(CASES["deepspec"].write(tmp_path), target)
        assert "12 layers" in message
        assert "has 14" in message

    def test_too_shallow_for_the_default(self, tmp_path: Path) -> None:
        target = replace(TARGET, sizes=TargetSizes(12, 40, 2))
        assert "layers" in refusal(CASES["safeailab"].write(tmp_path), target)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_copies_of_the_target_are_shared(self, dtype: torch.dtype, tmp_path: Path) -> None:
        # A file in bf16, and the target widened from it.
        target = replace(TARGET, embedding=TARGET.embedding.to(dtype).float())

        def copy(tensors: dict[str, Tensor]) -> None:
            tensors["model.embed_tokens.weight"] = target.embedding[:40].to(dtype)

        path = changed_tensors(tmp_path, CASES["deepspec"], copy)
        weights = load_drafter(path, target).weights
        assert weights[EMBEDDING].data_ptr() == target.embedding.data_ptr()
        assert weights[LM_HEAD].data_ptr() != target.lm_head.data_ptr()

    def test_eagle_takes_the_targets_head(self, tmp_path: Path) -> None:
        case = CASES["qwen2"]

        def add(tensors: dict[str, Tensor]) -> None:
            tensors["lm_head.weight"] = torch.zeros(40, 12)

        drafter = load_drafter(changed_tensors(tmp_path, case, add), TARGET)
        assert torch.equal(drafter.weights[LM_HEAD], TARGET.lm_head[:40])
        assert any("lm_head is not read" in sentence for sentence in drafter.spec.readings)
