"""What a run was made on: figures mean nothing without it."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from opgen.runtime import build


def describe(device: torch.device) -> dict[str, str | int]:
    """The processor or GPU, the threads, and every version that can change a figure."""
    found: dict[str, str | int] = {
        "device": _processor() if device.type == "cpu" else torch.cuda.get_device_name(device),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "opgen": version("opgen"),
        "compiler": _compiler(),
    }
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        found["cupy"] = str(importlib.import_module("cupy").__version__)
    return found


def _processor() -> str:
    """Its name and what matters of its instructions."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return f"{names[0] if names else platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def _compiler() -> str:
    try:
        command = build.find_compiler()
    except build.BuildError:
        return "none"
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return (said.stdout.splitlines() or ["unknown"])[0]
