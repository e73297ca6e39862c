"""``specfast generate`` with sampling: the same seed gives the same text, in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli.test_generate import read, run

PROMPT = "the key of the slot of the key of the slot"
COMPANY = ["漢 hash", "index index index", "a", "of of of of", "the index", "xyz", "key key"]


def report(model_path: Path, out: Path, *arguments: object, device: str = "cpu") -> dict[str, Any]:
    options = ("--model", model_path, "--json", out, "--ignore-eos", "--no-plain")
    result = run(*arguments, *options, device=device)
    assert result.exit_code == 0, result.stderr
    return read(out)


@pytest.mark.parametrize("drafts", [(), ("--tree",), ("--drafter", "none")], ids=str)
def test_a_seed_gives_the_same_text_alone_and_in_a_batch(
    model_path: Path, tmp_path: Path, drafts: tuple[str, ...]
) -> None:
    options = ("--temperature", 0.7, "--seed", 5, "--max-new-tokens", 24, *drafts)
    out = tmp_path / "out.json"
    (alone,) = report(model_path, out, PROMPT, *options)["prompts"]
    assert len(set(alone["token_ids"])) > 4
    for place in (0, 5):
        prompts = [*COMPANY[:place], PROMPT, *COMPANY[place:]]
        batch = report(model_path, out, *prompts, *options)["prompts"]
        assert batch[place]["text"] == alone["text"]
        assert batch[place]["token_ids"] == alone["token_ids"]
    # Slots that others have left, and prompts that come while others run.
    small = report(model_path, out, *COMPANY, PROMPT, *options, "--max-batch-size", 2)
    assert small["prompts"][-1]["text"] == alone["text"]
    other = report(model_path, out, PROMPT, *options, "--seed", 6)["prompts"][0]
    assert other["text"] != alone["text"]


def test_prompts_without_a_seed_get_one_each(model_path: Path, tmp_path: Path, device: str) -> None:
    out = tmp_path / "out.json"
    options = ("--temperature", 1, "--max-new-tokens", 12)
    drawn = report(model_path, out, PROMPT, PROMPT, *options, device=device)
    assert drawn["params"]["seed"] is None
    first, second = drawn["prompts"]
    assert first["seed"] != second["seed"]
    assert first["text"] != second["text"]
    again = report(model_path, out, PROMPT, PROMPT, *options, device=device)["prompts"]
    assert again[0]["text"] != first["text"]
    seeded = ("--seed", second["seed"])
    (same,) = report(model_path, out, PROMPT, *options, *seeded, device="cpu")["prompts"]
    if device == "cpu":
        assert same["text"] == second["text"]


def test_the_result_file_says_how_it_was_sampled(model_path: Path, tmp_path: Path) -> None:
    arguments = {
        "temperature": 0.9,
        "top_k": 12,
        "top_p": 0.8,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.1,
        "seed": 2**64 - 1,
        "logprobs": "processed",
    }
    options = [x for name, v in arguments.items() for x in (f"--{name.replace('_', '-')}", v)]
    options += ["--max-new-tokens", 9]
    written = report(model_path, tmp_path / "out.json", PROMPT, *options)
    assert {name: written["params"][name] for name in arguments} == arguments
    (prompt,) = written["prompts"]
    assert prompt["seed"] == 2**64 - 1
    assert len(prompt["logprobs"]) == len(prompt["token_ids"]) == 9
    assert all(logprob <= 1e-6 for logprob in prompt["logprobs"])


def test_penalties_change_a_greedy_text(model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    length = ("--max-new-tokens", 40)
    (plain,) = report(model_path, out, PROMPT, *length)["prompts"]
    (fresh,) = report(model_path, out, PROMPT, *length, "--presence-penalty", 1e6)["prompts"]
    assert len(set(plain["token_ids"])) < 40
    assert len(set(fresh["token_ids"])) == 40
    assert plain["logprobs"] is None


def test_a_stop_string_ends_the_text(model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    length = ("--max-new-tokens", 40, "--temperature", 1.5, "--seed", 3)
    (whole,) = report(model_path, out, PROMPT, *length)["prompts"]
    stop = next(c for c in whole["text"][5:] if c.isalpha() and c.isascii())
    result = run(PROMPT, "--model", model_path, *length, "--stop", stop, "--json", out)
    (prompt,) = read(out)["prompts"]
    assert prompt["finish_reason"] == "stop"
    assert prompt["text"] == whole["text"][: whole["text"].index(stop)]
    assert stop not in result.stdout.split("\n\n")[0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--temperature", -1), "expected temperature in [0, 3.4e38], got -1.0"),
        (("--temperature", "nan"), "expected temperature in [0, 3.4e38], got nan"),
        (("--top-k", -2), "expected top_k -1, 0 or a count < 2^31, got -2"),
        (("--top-p", 0), "expected top_p in (0, 1], got 0.0"),
        (("--min-p", 1.5), "expected min_p in [0, 1], got 1.5"),
        (("--repetition-penalty", 0), "expected repetition_penalty in (0, 3.4e38], got 0.0"),
        (("--seed", 2**64), f"expected seed in [0, 2^64) or None, got {2**64}"),
        (("--stop", ""), "expected stop as a tuple of strings that are not empty, got ('',)"),
        (("--logprobs", "all"), 'expected logprobs "raw", "processed" or None, got '),
        (("--logprobs", "raw"), "--logprobs go to the result file: name one with --json"),
        (("--check", "--temperature", 0.5), "--check compares with greedy decoding"),
        (("--check", "--presence-penalty", 1), "--check compares with greedy decoding"),
        (("--check", "--stop", "x"), "leave out --stop"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    model_path: Path, arguments: tuple[object, ...], complaint: str
) -> None:
    result = run("hash", "--model", model_path, *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("specfast: ")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--top-p", 0.5), "specfast: --top-p has no effect without --temperature\n"),
        (
            ("--top-k", 5, "--min-p", 0.1),
            "specfast: --top-k and --min-p have no effect without --temperature\n",
        ),
        (("--top-k", 1), ""),
        (("--temperature", 0, "--top-p", 0.5), ""),
        (("--temperature", 0.7, "--top-p", 0.5), ""),
    ],
)
def test_filters_that_nothing_goes_through_are_named(
    model_path: Path, options: tuple[object, ...], said: str
) -> None:
    shared = ("--model", model_path, "--max-new-tokens", 3, "--no-plain")
    result = run(PROMPT, *shared, *options)
    assert (result.exit_code, result.stderr) == (0, said)


def test_greedy_by_any_name_can_be_checked(model_path: Path) -> None:
    for options in (("--temperature", 0, "--top-p", 0.5), ("--temperature", 2, "--top-k", 1)):
        result = run(PROMPT, "--model", model_path, "--max-new-tokens", 12, "--check", *options)
        assert result.exit_code == 0, result.stderr
        assert "1 of 1 outputs are those of plain decoding" in result.stdout
