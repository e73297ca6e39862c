"""``specfast generate`` from its arguments to its exit code."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.conftest import make_model
from specfast import ops
from specfast.cli import app, engines
from specfast.cli.transcript import CONTROL_PICTURES
from specfast.engine import Engine, RoundOutput
from transformers import PreTrainedTokenizerBase
from typer.testing import CliRunner, Result

PROMPTS = ["the key of the slot of the key of the slot", "漢 hash", "index index index"]


def run(*arguments: object, device: str = "cpu") -> Result:
    return CliRunner().invoke(app, ["generate", *map(str, arguments), "--device", device])


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return path


def read(path: Path) -> dict[str, Any]:
    report = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(report, dict)
    return report


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--tree",),
        ("--drafter", "none"),
        ("--page-size", "1"),
        ("--graphs", "padded"),
        ("--graphs", "padded", "--tree", "--tiers", "4"),
        ("--graphs", "padded", "--drafter", "none", "--tiers", "1,3"),
    ],
)
def test_checked_run_with_a_result_file(
    model_path: Path, prompt_file: Path, tmp_path: Path, options: tuple[str, ...], device: str
) -> None:
    out = tmp_path / "out.json"
    arguments = ("--model", model_path, "--prompt-file", prompt_file, "--max-new-tokens", 24)
    arguments += ("--dtype", "fp32", "--check", "--ignore-eos", "--json", out, *options)
    result = run(*arguments, device=device)
    assert result.exit_code == 0, result.stderr
    assert "3 of 3 outputs are those of plain decoding" in result.stdout
    report = read(out)
    assert [prompt["prompt"] for prompt in report["prompts"]] == PROMPTS
    assert report["device"].startswith("CPU") == (device == "cpu")
    assert report["dtype"] == "fp32"
    assert report["params"]["max_new_tokens"] == 24
    assert report["versions"]["torch"] == torch.__version__
    rounds = [r for prompt in report["prompts"] for r in prompt["rounds"][1:]]
    summary = report["summary"]
    assert summary["tokens"] == sum(len(p["token_ids"]) for p in report["prompts"]) == 72
    assert summary["rounds"] == len(rounds)
    assert summary["tokens_per_round"] == pytest.approx(69 / len(rounds))
    assert summary["drafts_accepted"] == sum(r["num_accepted"] for r in rounds)
    # Random weights loop, so that prompt lookup finds something.
    assert (summary["drafts_accepted"] > 0) == ("none" not in options)
    assert report["plain"]["rounds"] == 69
    assert [check["failure"] for check in report["check"]] == [None] * 3
    for prompt in report["prompts"]:
        assert prompt["text"].translate(CONTROL_PICTURES) in result.stdout
        assert prompt["finish_reason"] == "length"


def test_batch_size_and_width_leave_the_text_alone(
    model_path: Path, prompt_file: Path, tmp_path: Path
) -> None:
    texts = []
    for options in [("--max-batch-size", 1), ("--verify-width", 2), ("--no-plain",)]:
        out = tmp_path / "out.json"
        arguments = ("--model", model_path, "--prompt-file", prompt_file, "--max-new-tokens", 16)
        assert run(*arguments, "--json", out, *options).exit_code == 0
        texts.append([prompt["text"] for prompt in read(out)["prompts"]])
    assert read(out)["plain"] is None
    assert texts[0] == texts[1] == texts[2]


def test_one_prompt_is_printed_without_a_heading(model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run("hash", "--model", model_path, "--max-new-tokens", 8, "--json", out, "--no-plain")
    text = read(out)["prompts"][0]["text"].translate(CONTROL_PICTURES)
    assert result.stdout.startswith(f"{text}\n\n{model_path}, CPU")


class BrokenEngine(Engine):
    """Emits another token in every fourth round that has drafts."""

    num_rounds = 0

    def step(self) -> list[RoundOutput]:
        outputs = super().step()
        for output in outputs:
            if output.num_proposed:
                type(self).num_rounds += 1
                if self.num_rounds % 4 == 0:
                    output.token_ids[-1] ^= 1
        return outputs


def test_the_check_fails_for_a_broken_engine(
    model_path: Path, prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "Engine", BrokenEngine)
    out = tmp_path / "out.json"
    arguments = ("--model", model_path, "--prompt-file", prompt_file, "--max-new-tokens", 24)
    result = run(*arguments, "--ignore-eos", "--check", "--json", out)
    assert result.exit_code == 1
    assert "Check FAILED for" in result.stdout
    assert "and it is no tie" in result.stdout
    assert any(check["failure"] for check in read(out)["check"])
    # Without --check nobody looks.
    assert run(*arguments, "--ignore-eos").exit_code == 0


def test_the_check_notices_kv_that_is_not_relocated(
    model_path: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--model", model_path, "--prompt-file", prompt_file, "--max-new-tokens", 48)
    arguments += ("--tree", "--ignore-eos", "--check")
    assert run(*arguments).exit_code == 0
    monkeypatch.setattr(ops, "relocate_kv", lambda *_, **options: options["status"])
    assert run(*arguments).exit_code == 1


def test_the_check_in_bf16_fails_for_a_broken_engine(
    model_path: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    arguments = ("--model", model_path, "--prompt-file", prompt_file, "--max-new-tokens", 24)
    arguments += ("--ignore-eos", "--check", "--dtype", "bf16")
    sound = run(*arguments, device=device)
    assert sound.exit_code == 0, sound.stdout
    monkeypatch.setattr(engines, "Engine", BrokenEngine)
    broken = run(*arguments, device=device)
    assert broken.exit_code == 1
    assert "is not the target's choice" in broken.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "nothing to generate from"),
        (("",), "prompt 1 is empty"),
        (("a" * 100,), "prompt 1 is too long"),
        (("hash", "--drafter", "oracle"), "unknown drafter 'oracle': choose from ngram, none"),
        (("hash", "--drafter", "/absent/drafter"), "there is no such directory"),
        (("hash", "--drafter", __file__), "is not a directory"),
        (("hash", "--drafter", "none", "--tree"), "--tree needs a drafter"),
        (("hash", "--tree", "--drawn"), "--drawn is for --tree with a drafter of EAGLE"),
        (("hash", "--drafter", "/tmp", "--drawn"), "--drawn is for --tree"),
        (("hash", "--json", "/proc/out.json"), "cannot write /proc/out.json"),
        (("hash", "--check", "--no-plain"), "leave out --no-plain"),
        (("--prompt-file", "absent.jsonl"), "cannot read the prompt file absent.jsonl"),
        (("hash", "--model", "/absent"), "the model directory /absent does not exist"),
        (("hash", "--model", __file__), "is a file; expected a directory"),
        (("hash", "--json", "/absent/out.json"), "the directory /absent does not exist"),
        (("hash", "--json", "n" * 300), "File name too long"),
        (("hash", "--graphs", "on"), "--graphs on needs a GPU, and the device is cpu"),
        (("hash", "--tiers", "4"), "--tiers are for --graphs on or padded"),
        (("hash", "--tiers", "a"), "--tiers takes numbers separated by commas, got 'a'"),
        (("hash", "--tiers", "0"), "--tiers must be 1 or more, got '0'"),
        (("hash", "hash", "--graphs", "padded", "--tiers", "1"), "the batch of 2 prompts, got 1"),
        (("hash", "--graphs", "padded", "--tiers", "1,2000"), "must be 1024 or less, got 2000"),
        (
            ("hash", "--graphs", "padded", "--verify-width", "200"),
            "--graphs padded cannot be used: 200 rows per request; at most 128 are known",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    model_path: Path, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    out = tmp_path / "out.json"
    defaults = [] if "--model" in arguments else ["--model", model_path]
    defaults += [] if "--json" in arguments else ["--json", out]
    result = run(*arguments, *defaults)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert result.stderr.startswith("specfast: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert not out.exists()


def test_a_limit_beyond_the_context_reserves_no_memory(model_path: Path) -> None:
    result = run("hash", "--model", model_path, "--no-plain", "--max-new-tokens", 10**12)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("name_bytes", [255, 256])
def test_the_longest_name_of_a_result_file(
    model_path: Path, tmp_path: Path, name_bytes: int
) -> None:
    out = tmp_path / ("n" * name_bytes)
    result = run("hash", "--model", model_path, "--no-plain", "--max-new-tokens", 2, "--json", out)
    assert result.exit_code == (0 if name_bytes == 255 else 2), result.stderr
    assert len(list(tmp_path.iterdir())) == (1 if name_bytes == 255 else 0)


def test_memory_that_is_not_there(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Greedy(Engine):
        def __init__(self, *_: object, **__: object) -> None:
            torch.empty(2**60)

    monkeypatch.setattr(engines, "Engine", Greedy)
    result = run("hash", "--model", model_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("specfast: not enough memory: ")
    assert result.stderr.count("\n") == 1


def test_the_tokenizer_of_another_model(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    make_model(100).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    result = run("hash", "--model", tmp_path)
    assert result.exit_code == 2
    assert "the tokenizer does not belong to the model" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_where_there_is_none(model_path: Path) -> None:
    result = run("hash", "--model", model_path, device="cuda")
    assert result.exit_code == 2
    assert "--device cuda cannot be used: " in result.stderr


@pytest.mark.parametrize("damage", ["config", "weights", "tokenizer"])
def test_damaged_models(tmp_path: Path, model_path: Path, damage: str) -> None:
    path = tmp_path / "model"
    path.mkdir()
    for source in model_path.iterdir():
        (path / source.name).write_bytes(source.read_bytes())
    if damage == "config":
        (path / "config.json").write_text("{")
    elif damage == "weights":
        (path / "model.safetensors").write_bytes(b"\x08" + bytes(20))
    else:
        (path / "tokenizer.json").unlink()
    result = run("hash", "--model", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"specfast: cannot load the model {path}: ")
    assert result.stderr.count("\n") == 1


def test_missing_weights_are_not_made_up(tmp_path: Path, model_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model"
    path.mkdir()
    for source in model_path.iterdir():
        (path / source.name).write_bytes(source.read_bytes())
    weights = load_file(path / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    result = run("hash", "--model", path)
    assert result.exit_code == 2
    assert "it lacks model.layers.1.mlp.up_proj.weight, one of 1 weights" in result.stderr


def test_an_interrupted_run_leaves_nothing(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Engine):
        def step(self) -> list[RoundOutput]:
            raise KeyboardInterrupt

    monkeypatch.setattr(engines, "Engine", Interrupted)
    result = run("hash", "--model", model_path, "--json", tmp_path / "out.json")
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert not (tmp_path / "out.json").exists()


def test_a_local_model_needs_no_network(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[object] = []

    def no_network(*arguments: object, **_: object) -> None:
        looked_up.append(arguments)
        raise OSError("no network here")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    assert run("hash", "--model", model_path, "--max-new-tokens", "2").exit_code == 0
    assert looked_up == []
