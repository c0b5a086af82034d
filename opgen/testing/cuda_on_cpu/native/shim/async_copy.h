// Twins of the PTX instructions cp.async, cp.async.commit_group and cp.async.wait_group.
#pragma once

EMU_RUNTIME void emu_cp_async(void *destination, const void *source, int bytes, int source_bytes);
EMU_RUNTIME void emu_cp_commit();
EMU_RUNTIME void emu_cp_wait(int pending);
