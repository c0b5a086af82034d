"""The structures of native/runtime/abi.h, and how the run time is called."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_int32, c_int64, c_uint32, c_uint64, c_void_p


class Triple(ctypes.Structure):
    """Three dimensions of a thread or block."""

    _fields_ = [("x", c_uint32), ("y", c_uint32), ("z", c_uint32)]

    def as_tuple(self) -> tuple[int, int, int]:
        """(x, y, z)."""
        return self.x, self.y, self.z


class Finding(ctypes.Structure):
    """A finding, without the names that only Python knows."""

    _fields_ = [
        *((name, c_int32) for name in ("kind", "array", "bytes", "is_write", "has_other")),
        ("padding", c_int32),
        ("pc", c_uint64),
        ("offset", c_int64),
        ("other_pc", c_uint64),
        *((name, Triple) for name in ("thread", "block", "other_thread", "other_block")),
        ("detail", c_char * 128),
    ]


class Array(ctypes.Structure):
    """Memory that a launch may access."""

    _fields_ = [
        ("base", c_uint64),
        ("bytes", c_uint64),
        ("written", c_void_p),
        ("cell_log2", c_int32),
        ("is_const", c_int32),
    ]


class Site(ctypes.Structure):
    """One static access to one array."""

    _fields_ = [
        ("pc", c_uint64),
        *((name, c_int32) for name in ("array", "is_write", "bytes", "padding")),
        *((name, c_uint64) for name in ("requests", "lanes", "moved", "ideal")),
    ]


class Traffic(ctypes.Structure):
    """Sectors of one array."""

    _fields_ = [
        (f"{access}_{what}", c_uint64)
        for access in ("read", "write")
        for what in ("sectors", "block_sectors", "unique_sectors", "lane_bytes")
    ]


class Options(ctypes.Structure):
    """How a launch runs."""

    _fields_ = [
        ("check", c_int32),
        ("trace", c_int32),
        ("order", c_int32),
        ("seed", c_uint32),
        ("strict_exit", c_int32),
        ("timeout_ms", c_int32),
    ]


class Launch(ctypes.Structure):
    """One launch."""

    _fields_ = [
        ("entry", c_void_p),
        ("arguments", POINTER(c_void_p)),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("blocks", POINTER(c_uint64)),
        ("block_count", c_uint64),
        ("dynamic_shared", c_void_p),
        ("dynamic_bytes", c_uint64),
        ("dynamic_capacity", c_uint64),
        ("arrays", POINTER(Array)),
        ("array_count", c_int32),
        ("options", Options),
    ]


class Outcome(ctypes.Structure):
    """What came of it."""

    _fields_ = [
        ("findings", POINTER(Finding)),
        ("finding_capacity", c_int32),
        ("finding_count", c_int32),
        ("sites", POINTER(Site)),
        ("site_capacity", c_int32),
        ("site_count", c_int32),
        ("traffic", POINTER(Traffic)),
        ("static_shared", c_uint64),
        ("accesses", c_uint64),
        ("aborted", c_int32),
        ("sites_left_out", c_int32),
    ]


class Parameter(ctypes.Structure):
    """One parameter of a kernel; see native/shim/launch_stub.h."""

    _fields_ = [("kind", c_int32), ("code", c_int32), ("bytes", c_int32)]
