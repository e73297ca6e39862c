#pragma once

#include "core/attention_mma.cuh"

namespace specfast {

// Matrix instructions of a warpgroup (sm_90a): sums [64, N] += a [64, 16] b [16, N], a in registers
// as in multiply_add, each of the four warps with 16 rows; b in shared memory, read while the warps
// go on. What a warpgroup passes to an instruction it may not touch before finish_matrices().

// Where b lies: tiles in blocks of 64 columns of 128 bytes, 16-byte groups permuted by row
// (KeyTile), 1024 bytes aligned. `block_bytes`: between blocks.
__device__ inline uint64_t matrix_descriptor(uint32_t shared_address, int block_bytes) {
  constexpr uint64_t kPermuted128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kPermuted128 | kEightRows | static_cast<uint64_t>(block_bytes >> 4) << 16 |
         (shared_address & 0x3ffff) >> 4;
}

// Before the first instruction: registers and shared memory are as written.
__device__ inline void begin_matrices() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_matrices() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ void finish_matrices() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// By every thread that copied a tile, before the barrier behind which warpgroups read it.
__device__ inline void show_copies_to_matrices() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Keeps uses of these registers on this side of finish_matrices().
template <int kBlocks>
__device__ void pin_registers(float (&sums)[kBlocks][4]) {
  SPECFAST_UNROLL
  for (int block = 0; block < kBlocks; ++block) {
    SPECFAST_UNROLL
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[block][i])::"memory");
  }
}

#define SPECFAST_BLOCK(s, i) "+f"(s[i][0]), "+f"(s[i][1]), "+f"(s[i][2]), "+f"(s[i][3])
#define SPECFAST_8_BLOCKS(s, i)                                                     \
  SPECFAST_BLOCK(s, i), SPECFAST_BLOCK(s, i + 1), SPECFAST_BLOCK(s, i + 2),         \
      SPECFAST_BLOCK(s, i + 3), SPECFAST_BLOCK(s, i + 4), SPECFAST_BLOCK(s, i + 5), \
      SPECFAST_BLOCK(s, i + 6), SPECFAST_BLOCK(s, i + 7)
#define SPECFAST_32_REGISTERS                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPECFAST_64_REGISTERS                                                          \
  SPECFAST_32_REGISTERS                                                                \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SPECFAST_MATRIX_64(type)                                                             \
  asm volatile(                                                                              \
      "{ .reg .pred adds; setp.ne.b32 adds, %37, 0;\n"                                       \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" SPECFAST_32_REGISTERS \
      "}, {%32, %33, %34, %35}, %36, adds, 1, 1, %38; }"                                     \
      : SPECFAST_8_BLOCKS(sums, 0)                                                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)),     \
        "n"(kRowsOfB ? 1 : 0))
#define SPECFAST_MATRIX_128(type)                                                             \
  asm volatile(                                                                               \
      "{ .reg .pred adds; setp.ne.b32 adds, %69, 0;\n"                                        \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" SPECFAST_64_REGISTERS \
      "}, {%64, %65, %66, %67}, %68, adds, 1, 1, %70; }"                                      \
      : SPECFAST_8_BLOCKS(sums, 0), SPECFAST_8_BLOCKS(sums, 8)                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)),      \
        "n"(kRowsOfB ? 1 : 0))

// kRowsOfB: a row of b is contiguous (values: a key's columns), else a column is (keys: a key's
// columns, of which sixteen are the rows here). `adds` false: sums are overwritten.
template <class T, bool kRowsOfB>
__device__ void multiply_add_64(float (&sums)[8][4], const uint32_t (&a)[4], uint64_t b,
                                bool adds) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    SPECFAST_MATRIX_64("bf16");
  } else {
    SPECFAST_MATRIX_64("f16");
  }
}
template <class T, bool kRowsOfB>
__device__ void multiply_add_128(float (&sums)[16][4], const uint32_t (&a)[4], uint64_t b,
                                 bool adds) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    SPECFAST_MATRIX_128("bf16");
  } else {
    SPECFAST_MATRIX_128("f16");
  }
}

#undef SPECFAST_MATRIX_128
#undef SPECFAST_MATRIX_64
#undef SPECFAST_64_REGISTERS
#undef SPECFAST_32_REGISTERS
#undef SPECFAST_8_BLOCKS
#undef SPECFAST_BLOCK

}  // namespace specfast
