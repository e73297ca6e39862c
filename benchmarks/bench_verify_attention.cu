// Verify attention over a paged cache in HBM: chains of a few rows and trees of 64, bf16, head_dim
// 128, pages of 16 in random order; keys and values in bf16 or float8_e4m3fn. The floor is the
// bytes of keys and values.

#include <cuda_runtime.h>

#include <cmath>
#include <numeric>

#include "core/launch.cuh"
#include "ops/verify_attention.h"
#include "random.h"
#include "set_array.cuh"
#include "workload.h"

namespace specfast::bench {
namespace {

constexpr int kHeadDim = 128;
constexpr int kKvHeads = 8;
constexpr int kPageSize = 16;
constexpr int kPageElements = kPageSize * kKvHeads * kHeadDim;
constexpr double kColdBytes = 256e6;
constexpr int kThreads = 256;

// Uniform in [-spread, spread).
SPECFAST_HD BFloat16 drawn_value(uint64_t seed, int64_t at, float spread) {
  float unit = static_cast<float>(mix_bits(seed << 48 ^ at) >> 40) * 0x1p-23f - 1.0f;
  BFloat16 value;
  store_float(unit * spread, &value);
  return value;
}

// Magnitudes up to 1, as the draw has them or spread over the exponents.
SPECFAST_HD void draw_element(uint64_t seed, int64_t at, BFloat16* element) {
  *element = drawn_value(seed, at, 1.0f);
}
SPECFAST_HD void draw_element(uint64_t seed, int64_t at, Float8* element) {
  const uint64_t bits = mix_bits(seed << 48 ^ at);
  element->bits = static_cast<uint8_t>((bits >> 40) % 0x39 | (bits >> 63) << 7);
}

template <class Kv>
__global__ void fill_kernel(Kv* values, int64_t count, uint64_t seed) {
  int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    draw_element(seed, i, values + i);
  }
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) { SPECFAST_CUDA_CHECK(cudaMalloc(&data_, bytes)); }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// All requests have `kContext` keys, the rows' own included.
template <int kHeads, int kContext, bool kTree, class Kv = BFloat16>
class VerifyAttention : public Workload {
 public:
  explicit VerifyAttention(const Point& point)
      : batch_(point.batch),
        nodes_(point.nodes),
        rows_(point.batch * point.nodes),
        sets_(max_of(2, static_cast<int>(kColdBytes / kv_bytes()))),
        pages_(static_cast<int64_t>(batch_) * kPages),
        query_(sets_, int64_t{rows_} * kHeads * kHeadDim),
        out_(sets_, query_.count()),
        table_(sets_, pages_),
        prefix_lens_(1, batch_),
        indptr_(1, batch_ + 1),
        mask_(1, int64_t{batch_} * nodes_ * ceil_div(nodes_, 32)),
        scales_(1, kKvHeads),
        keys_(cache_bytes() * sets_),
        values_(cache_bytes() * sets_),
        workspace_(kWorkspaceBytes) {
    SPECFAST_CUDA_CHECK(cudaMemset(workspace_.data(), 0, kWorkspaceBytes));
    int64_t count = sets_ * pages_ * kPageElements;
    for (auto* buffer : {&keys_, &values_}) {
      specfast::launch(fill_kernel<Kv>, {dim3(2048), dim3(kThreads)}, nullptr,
                       static_cast<Kv*>(buffer->data()), count,
                       uint64_t{buffer == &keys_ ? 1u : 2u});
    }
    for (int set = 0; set < sets_; ++set) {
      Random random(set);
      int32_t* pages = table_.host(set);
      std::iota(pages, pages + pages_, 0);
      for (int64_t i = pages_ - 1; i > 0; --i) std::swap(pages[i], pages[random.bits() % (i + 1)]);
      for (int64_t i = 0; i < query_.count(); ++i) {
        query_.host(set)[i] = drawn_value(3 + set, i, 8.0f);
      }
    }
    std::fill_n(prefix_lens_.host(0), batch_, kContext - nodes_);
    for (int b = 0; b <= batch_; ++b) indptr_.host(0)[b] = b * nodes_;
    std::fill_n(scales_.host(0), kKvHeads, 1.0f);
    draw_trees();
    query_.upload();
    table_.upload();
    prefix_lens_.upload();
    indptr_.upload();
    mask_.upload();
    scales_.upload();
  }

  int sets() const override { return sets_; }
  void launch(int set, CUstream_st* stream) override {
    VerifyAttentionParams p = params(Side::kDevice, set);
    p.keys.data = cache(keys_, set);
    p.values.data = cache(values_, set);
    p.workspace = workspace_.data();
    p.workspace_bytes = kWorkspaceBytes;
    verify_attention_cuda(p, stream);
  }

  // The heads of one KV head of one request: all of them would take minutes.
  void check(int set) override {
    constexpr int kGroup = kHeads / kKvHeads;
    const int b = (7 * set) % batch_;
    const int kv_head = set % kKvHeads;
    std::vector<Kv> keys = fetch_pages(keys_, set, b);
    std::vector<Kv> values = fetch_pages(values_, set, b);
    std::vector<int32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    std::vector<int32_t> indptr = {b * nodes_, (b + 1) * nodes_};
    VerifyAttentionParams p = params(Side::kHost, set);
    const int64_t first_head = int64_t{kv_head} * kGroup * kHeadDim;
    p.batch_size = p.num_table_rows = 1;
    p.num_heads = kGroup;
    p.num_kv_heads = 1;
    p.num_pages = kPages;
    p.query = static_cast<const BFloat16*>(p.query) + first_head;
    p.keys.data = keys.data() + kv_head * kHeadDim;
    p.values.data = values.data() + kv_head * kHeadDim;
    p.page_table = {pages.data(), false};
    p.qo_indptr = indptr.data();
    if (kTree) p.mask_bits += int64_t{b} * nodes_ * ceil_div(nodes_, 32);
    // Rows of other requests come out as zeros, in storage of this check's own.
    std::vector<BFloat16> want(out_.count());
    p.out = want.data() + first_head;
    verify_attention_cpu(p);

    std::vector<BFloat16> got(out_.count());
    SPECFAST_CUDA_CHECK(cudaMemcpy(got.data(), out_.on(Side::kDevice, set), got.size() * 2,
                                   cudaMemcpyDeviceToHost));
    for (int row = b * nodes_; row < (b + 1) * nodes_; ++row) {
      for (int i = 0; i < kGroup * kHeadDim; ++i) {
        int64_t at = int64_t{row} * kHeads * kHeadDim + first_head + i;
        float is = to_float(got[at]);
        float should = to_float(want[at]);
        // Values below 1 in magnitude; weights and both results are rounded to bf16.
        if (std::fabs(is - should) <= 0x1p-8f * (0.5f + 2 * std::fabs(should))) continue;
        throw Mismatch("row " + std::to_string(row) + " of input set " + std::to_string(set) +
                       ": the kernel wrote " + std::to_string(is) + ", the CPU body " +
                       std::to_string(should));
      }
    }
  }
  Traffic traffic() override { return {kv_bytes() + query_.bytes() + out_.bytes(), 0, 0}; }

 private:
  static constexpr int kPages = kContext / kPageSize;
  static constexpr int64_t kWorkspaceBytes = 1 << 28;

  double kv_bytes() const { return 2.0 * sizeof(Kv) * batch_ * kContext * kKvHeads * kHeadDim; }
  size_t cache_bytes() const { return static_cast<size_t>(pages_) * kPageElements * sizeof(Kv); }
  const Kv* cache(const DeviceBuffer& buffer, int set) const {
    return static_cast<const Kv*>(buffer.data()) + set * pages_ * kPageElements;
  }

  std::vector<Kv> fetch_pages(const DeviceBuffer& buffer, int set, int b) {
    std::vector<Kv> pages(static_cast<size_t>(kPages) * kPageElements);
    for (int i = 0; i < kPages; ++i) {
      int64_t page = table_.host(set)[b * kPages + i];
      SPECFAST_CUDA_CHECK(cudaMemcpy(pages.data() + int64_t{i} * kPageElements,
                                     cache(buffer, set) + page * kPageElements,
                                     kPageElements * sizeof(Kv), cudaMemcpyDeviceToHost));
    }
    return pages;
  }

  // Every node hangs under one of the eight before it.
  void draw_trees() {
    const int words = ceil_div(nodes_, 32);
    Random random(99);
    std::fill_n(mask_.host(0), mask_.count(), 0);
    for (int64_t i = 0; i < int64_t{batch_} * nodes_; ++i) {
      uint32_t* row = mask_.host(0) + i * words;
      const int node = static_cast<int>(i % nodes_);
      if (node > 0) {
        const int parent = max_of(0, node - 1 - random.below(8));
        std::copy_n(row - (node - parent) * words, words, row);
      }
      row[node / 32] |= 1u << node % 32;
    }
  }

  VerifyAttentionParams params(Side side, int set) {
    VerifyAttentionParams p{};
    p.batch_size = p.num_table_rows = batch_;
    p.num_rows = rows_;
    p.num_heads = kHeads;
    p.num_kv_heads = kKvHeads;
    p.head_dim = kHeadDim;
    p.max_rows = p.mask_nodes = nodes_;
    p.type = FloatType::kBFloat16;
    p.query = query_.on(side, set);
    p.out = out_.on(side, set);
    p.query_row_stride = p.out_row_stride = kHeads * kHeadDim;
    p.query_head_stride = p.out_head_stride = kHeadDim;
    p.keys.slot_stride = kKvHeads * kHeadDim;
    p.keys.head_stride = kHeadDim;
    if (std::is_same_v<Kv, Float8>) {
      p.keys.scales = scales_.on(side, 0);
      p.keys.scale_stride = 1;
    }
    p.values = p.keys;
    p.page_pitch = p.page_size = kPageSize;
    p.num_pages = static_cast<int32_t>(pages_);
    p.page_table = {table_.on(side, set), false};
    p.page_table_stride = p.pages_per_row = kPages;
    p.prefix_lens = prefix_lens_.on(side, 0);
    p.qo_indptr = indptr_.on(side, 0);
    if (kTree) p.mask_bits = mask_.on(side, 0);
    p.scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
    return p;
  }

  int batch_, nodes_, rows_, sets_;
  int64_t pages_;
  SetArray<BFloat16> query_, out_;
  SetArray<int32_t> table_, prefix_lens_, indptr_;
  SetArray<uint32_t> mask_;
  SetArray<float> scales_;
  DeviceBuffer keys_, values_, workspace_;
};

constexpr char kOp[] = "verify_attention";

Point point(const char* variant, int batch, int nodes, double aim_us = 0) {
  return {variant, batch, nodes, 0, "bf16", aim_us};
}

Registrar chains(benchmark<VerifyAttention<32, 8192, false>>(
    kOp, {point("32/8 heads, 8k, cold", 1, 1), point("32/8 heads, 8k, cold", 1, 8, 15),
          point("32/8 heads, 8k, cold", 1, 16), point("32/8 heads, 8k, cold", 8, 1),
          point("32/8 heads, 8k, cold", 8, 8, 72), point("32/8 heads, 8k, cold", 8, 16),
          point("32/8 heads, 8k, cold", 64, 1), point("32/8 heads, 8k, cold", 64, 8, 535),
          point("32/8 heads, 8k, cold", 64, 16)}));
Registrar short_chains(
    benchmark<VerifyAttention<32, 1024, false>>(kOp, {point("32/8 heads, 1k, cold", 64, 8)}));
Registrar float8_chains(benchmark<VerifyAttention<32, 8192, false, Float8>>(
    kOp, {point("32/8 heads, 8k, fp8 KV, cold", 1, 8), point("32/8 heads, 8k, fp8 KV, cold", 8, 8),
          point("32/8 heads, 8k, fp8 KV, cold", 64, 8)}));
Registrar trees(benchmark<VerifyAttention<32, 8192, true>>(
    kOp, {point("32/8 heads, tree, 8k, cold", 8, 64),
          point("32/8 heads, tree, 8k, cold", 64, 64, 1500)}));
Registrar wide_chains(benchmark<VerifyAttention<64, 8192, false>>(
    kOp, {point("64/8 heads, 8k, cold", 64, 8), point("64/8 heads, 8k, cold", 64, 16, 630)}));
Registrar wide_trees(
    benchmark<VerifyAttention<64, 8192, true>>(kOp, {point("64/8 heads, tree, 8k, cold", 8, 64),
                                                     point("64/8 heads, tree, 8k, cold", 64, 64)}));

}  // namespace
}  // namespace specfast::bench
