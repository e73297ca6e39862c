"""Options and fixtures that every test may use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch
from implementations import IMPLEMENTATIONS, Implementation
from registered_ops import registered_ops

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# The same examples on every run: a failure here is a failure everywhere.
hypothesis.settings.register_profile("specfast", derandomize=True, deadline=None)
hypothesis.settings.load_profile("specfast")


def pytest_configure() -> None:
    """Spread the processes of pytest-xdist over the GPUs."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(worker) % torch.cuda.device_count())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        help="run the `device` tests on this device only, and fail instead of skipping without it",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))


def missing_for_cuda() -> str | None:
    """What keeps the kernels from running here, or None."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not all(has_kernel(f"specfast::{op}", "CUDA") for op in registered_ops()):
        return "specfast was built without its CUDA kernels"
    return None


def require_device(name: str, request: pytest.FixtureRequest) -> None:
    """Skip the test where this device is not wanted or not here."""
    wanted = request.config.getoption("--device")
    if wanted not in (None, name):
        pytest.skip(f"--device {wanted}")
    if name == "cuda" and (missing := missing_for_cuda()):
        if wanted == "cuda":
            pytest.fail(missing)
        pytest.skip(missing)


@pytest.fixture(params=("cpu", "cuda"))
def device(request: pytest.FixtureRequest) -> str:
    """Run the test on each device that is here."""
    require_device(request.param, request)
    return request.param


@pytest.fixture(params=IMPLEMENTATIONS)
def impl(request: pytest.FixtureRequest) -> Implementation:
    """Run the test on each implementation of sampled verification that is here."""
    require_device(request.param, request)
    return IMPLEMENTATIONS[request.param]


@pytest.fixture
def num_draws(impl: Implementation, request: pytest.FixtureRequest) -> int:
    """Streams of a test of a law."""
    return impl.slow_draws if request.config.getoption("--slow") else impl.draws


@pytest.fixture
def num_requests(num_draws: int) -> int:
    """Requests of a test that draws once: more, where draws are few; at most what a call takes."""
    return min(3 * num_draws, 2**20)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    # transformers takes seconds to import, and most tests do without.
    from tiny_tokenizer import make_tokenizer

    return make_tokenizer()
