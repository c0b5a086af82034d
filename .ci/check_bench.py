"""Whether `opgen bench --json PATH` wrote what it promises: `python .ci/check_bench.py PATH`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

KINDS = {"shift_sum", "upsampling", "convolution", "unfold", "depth_to_space", "nets"}


def check(path: Path) -> None:
    """AssertionError where a field is missing, or a kind of row was not measured."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["machine"], "no machine"
    assert not found["refused"], f"contenders disagree: {found['refused']}"
    for row in found["rows"]:
        where = f"{row['name']}, {row['direction']}"
        assert row["direction"] in ("forward", "backward"), where
        assert len(row["times"]) > 1 and "opgen" in row["times"], where
        assert all(isinstance(t, float) and t > 0 for t in row["times"].values()), where
        assert isinstance(row["limit"], float) and row["limit"] > 0, where
        assert isinstance(row["dispatched"], bool), where
        assert not row["failed"], f"{where}: {row['failed']}"
    assert {row["kind"] for row in found["rows"]} == KINDS, "a kind of row was not measured"
    compiled = {row["name"] for row in found["rows"] if "torch.compile" in row["times"]}
    assert len(compiled) == 2, f"torch.compile took part in {sorted(compiled)}"
    print(f"{len(found['rows'])} rows, torch.compile in {', '.join(sorted(compiled))}")


if __name__ == "__main__":
    check(Path(sys.argv[1]))
