"""What numba does not offer: loads from an address (state is memory-mapped, and one loop reads hundreds of mapped
segments), sums kept at one, the population count of a word, and prefetching."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _loader(bits: int, result: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        signature = result(types.int64)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            # State in a file may lie at any address: x86 and ARM load unaligned words at full speed, if told so.
            return builder.load(pointer, align=1)

        return signature, generate

    return load


load_u8 = _loader(8, types.uint8)
load_u16 = _loader(16, types.uint16)
load_u32 = _loader(32, types.uint32)
load_u64 = _loader(64, types.uint64)
load_i32 = _loader(32, types.int32)
load_i64 = _loader(64, types.int64)


@intrinsic
def load_f64(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.DoubleType().as_pointer()), align=8)

    return types.float64(types.int64), generate


@intrinsic
def store_f64(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.DoubleType().as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.float64), generate


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """How many bits of a 64-bit word are set."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Asks for the cache line at an address, which need not be valid."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer_type, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer_type], ir.FunctionType(ir.VoidType(), [pointer_type, word, word, word])
        )
        pointer = builder.inttoptr(args[0], pointer_type)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate
