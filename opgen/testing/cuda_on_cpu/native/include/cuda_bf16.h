// __nv_bfloat16 and __nv_bfloat162 for the host.
#pragma once
#include "emu_narrow.h"

using __nv_bfloat16 = emu_narrow::number<emu_narrow::brain_float>;
using __nv_bfloat162 = emu_narrow::pair<emu_narrow::brain_float>;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
EMU_CONVERSIONS(bfloat16, __nv_bfloat16, __nv_bfloat162, __halves2bfloat162, bfloat162)
