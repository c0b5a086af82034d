// __half and __half2 for the host.
#pragma once
#include "emu_narrow.h"

using __half = emu_narrow::number<emu_narrow::ieee_half>;
using __half2 = emu_narrow::pair<emu_narrow::ieee_half>;
typedef __half half;
typedef __half2 half2;
EMU_CONVERSIONS(half, __half, __half2, __halves2half2, half2)
