"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from specfast.cli.target import DeviceName, DtypeName

ModelOption = Annotated[
    str | None,
    typer.Option(help="Directory or hub id.", show_default="SmolLM2-135M-Instruct"),
]
DeviceOption = Annotated[DeviceName | None, typer.Option(show_default="cuda where it can be used")]
DtypeOption = Annotated[DtypeName | None, typer.Option(show_default="fp32 on cpu, bf16 on cuda")]
PageSizeOption = Annotated[
    int, typer.Option(min=1, max=2**20, help="Tokens per page of the KV pool.")
]
