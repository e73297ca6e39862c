#pragma once

#include "core/attention_instructions.cuh"

namespace specfast {

// Matrix instructions of a warpgroup (sm_90a): sums [64, N] += a [64, 16] b [16, N], each of the
// four warps with 16 rows; b, and a if it is no registers, in shared memory, read while the warps
// go on. What a warpgroup passes to an instruction it may not touch before finish_matrices().

// Where a matrix lies in shared memory: tiles in blocks of 64 columns of 128 bytes, 16-byte groups
// permuted by row (RowTile), 1024 bytes aligned. `block_bytes`: between blocks.
class MatrixPlace {
 public:
  __device__ MatrixPlace(uint32_t shared_address, int block_bytes)
      : low_(static_cast<uint32_t>(block_bytes >> 4) << 16 | (shared_address & 0x3ffff) >> 4) {}

  __device__ MatrixPlace advance(int bytes) const { return MatrixPlace(low_ + (bytes >> 4)); }
  __device__ uint64_t descriptor() const {
    constexpr uint64_t kPermuted128 = uint64_t{1} << 62;
    constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
    return kPermuted128 | kEightRows | low_;
  }

 private:
  __device__ explicit MatrixPlace(uint32_t low) : low_(low) {}

  uint32_t low_;
};

// Before the first instruction: registers and shared memory are as written.
__device__ inline void begin_matrices() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_matrices() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ void finish_matrices() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
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

#define SPECFAST_BLOCK(f, s, i) f(s[i][0]), f(s[i][1]), f(s[i][2]), f(s[i][3])
#define SPECFAST_8_BLOCKS(f, s, i)                                                           \
  SPECFAST_BLOCK(f, s, i), SPECFAST_BLOCK(f, s, i + 1), SPECFAST_BLOCK(f, s, i + 2),         \
      SPECFAST_BLOCK(f, s, i + 3), SPECFAST_BLOCK(f, s, i + 4), SPECFAST_BLOCK(f, s, i + 5), \
      SPECFAST_BLOCK(f, s, i + 6), SPECFAST_BLOCK(f, s, i + 7)
#define SPECFAST_32_REGISTERS                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPECFAST_64_REGISTERS                                                          \
  SPECFAST_32_REGISTERS                                                                \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SPECFAST_SCORES(type, access, adds)                                  \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " adds                  \
               ", 0;\n"                                                      \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type   \
               " {" SPECFAST_32_REGISTERS "}, %32, %33, adds, 1, 1, 0, 0; }" \
               : SPECFAST_8_BLOCKS(access, sums, 0)                          \
               : "l"(a.descriptor()), "l"(b.descriptor()))
#define SPECFAST_SCORES_OF_REGISTERS(type, access, adds)                                   \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " adds                                \
               ", 0;\n"                                                                    \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                 \
               " {" SPECFAST_32_REGISTERS "}, {%32, %33, %34, %35}, %36, adds, 1, 1, 0; }" \
               : SPECFAST_8_BLOCKS(access, sums, 0)                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()))
// Sums of blocks kFirst and on.
#define SPECFAST_VALUES_64(type)                                                      \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type            \
               " {" SPECFAST_32_REGISTERS "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;" \
               : SPECFAST_8_BLOCKS("+f", sums, kFirst)                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()))
#define SPECFAST_VALUES_128(type)                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                       \
               " {" SPECFAST_64_REGISTERS "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"             \
               : SPECFAST_8_BLOCKS("+f", sums, kFirst), SPECFAST_8_BLOCKS("+f", sums, kFirst + 8) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor()))

// Columns of b are contiguous: keys. kAdds false: sums are overwritten, and free before.
template <class T, bool kAdds>
__device__ void multiply_queries(float (&sums)[8][4], MatrixPlace a, MatrixPlace b) {
  if constexpr (kAdds && std::is_same_v<T, BFloat16>) {
    SPECFAST_SCORES("bf16", "+f", "1");
  } else if constexpr (kAdds) {
    SPECFAST_SCORES("f16", "+f", "1");
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    SPECFAST_SCORES("bf16", "=f", "0");
  } else {
    SPECFAST_SCORES("f16", "=f", "0");
  }
}
template <class T, bool kAdds>
__device__ void multiply_queries(float (&sums)[8][4], const uint32_t (&a)[4], MatrixPlace b) {
  if constexpr (kAdds && std::is_same_v<T, BFloat16>) {
    SPECFAST_SCORES_OF_REGISTERS("bf16", "+f", "1");
  } else if constexpr (kAdds) {
    SPECFAST_SCORES_OF_REGISTERS("f16", "+f", "1");
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    SPECFAST_SCORES_OF_REGISTERS("bf16", "=f", "0");
  } else {
    SPECFAST_SCORES_OF_REGISTERS("f16", "=f", "0");
  }
}
// Rows of b are contiguous: values. Of kColumns columns, 64 or 128, from block kFirst of sums on; a
// of a lane: rows l / 4 and l / 4 + 8 at columns l % 4 * 2 and the next, then at those 8 further.
template <class T, int kColumns, int kFirst, int kBlocks>
__device__ void multiply_weights(float (&sums)[kBlocks][4], const uint32_t (&a)[4], MatrixPlace b) {
  if constexpr (kColumns == 64 && std::is_same_v<T, BFloat16>) {
    SPECFAST_VALUES_64("bf16");
  } else if constexpr (kColumns == 64) {
    SPECFAST_VALUES_64("f16");
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    SPECFAST_VALUES_128("bf16");
  } else {
    SPECFAST_VALUES_128("f16");
  }
}

#undef SPECFAST_VALUES_128
#undef SPECFAST_VALUES_64
#undef SPECFAST_SCORES_OF_REGISTERS
#undef SPECFAST_SCORES
#undef SPECFAST_64_REGISTERS
#undef SPECFAST_32_REGISTERS
#undef SPECFAST_8_BLOCKS
#undef SPECFAST_BLOCK

}  // namespace specfast
