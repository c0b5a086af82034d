// What this header of CUDA declares is there without it.
#pragma once
