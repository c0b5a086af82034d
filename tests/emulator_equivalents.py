"""Mutants that nothing can notice, by kernel and changed line, each with the reason."""

from __future__ import annotations

_LARGER = "a larger array, of which the same part is used"
_EVEN = "offsets from -1 to 1 are all added, in either direction"
_FOURS = "j and W are multiples of 4, and no such multiple lies between the two bounds"

EQUIVALENT: dict[str, dict[str, str]] = {
    "blur": {
        "__shared__ float a[TY*5 + 4][TX + 4];": _LARGER,
        "__shared__ float a[TY*4 + 5][TX + 4];": _LARGER,
        "__shared__ float a[TY*4 + 4][TX + 5];": _LARGER,
        "__shared__ float b[TY*5][TX + 4];": _LARGER,
        "__shared__ float b[TY*4][TX + 5];": _LARGER,
    },
    "transpose": {
        "__shared__ float t[33][33];": _LARGER,
        "__shared__ float t[32][34];": f"{_LARGER}; its columns still lie in different banks",
    },
    "reduce": {
        "__shared__ float part[33];": _LARGER,
        "for (int o = 17; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);": (
            "the lanes that differ in 17, 8, 4, 2 and 1 are all 32, as with 16 in place of 17"
        ),
        "if (t == 1) y[0] = v;": "after the exchange every lane holds the total",
    },
    "shift_sum": {
        "int a = i - di, b = j + dj;": _EVEN,
        "int a = i + di, b = j - dj;": _EVEN,
    },
    "shift_sum_vector": {
        "float4 h[4];": _LARGER,
        "if (j >= W || i0 > H) return;": "a thread at row H reads rows inside and writes none",
        "float l = j > 1 ? r[-1] : 0.f, e = j + 4 < W ? r[4] : 0.f;": _FOURS,
        "float l = j > 0 ? r[-1] : 0.f, e = j + 5 < W ? r[4] : 0.f;": _FOURS,
    },
    "depth_to_space_vector": {
        "V p = *(const V*)(x + ((a*2 - 0)*Co + c)*H*W + h*W + w);": "0 is added or subtracted",
    },
}
