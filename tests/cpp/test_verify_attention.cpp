#include "attention_case.h"
#include "core/thread_team.h"
#include "testing.h"

namespace specfast {
namespace {

using testing::AttentionCase;
using testing::AttentionShape;

constexpr auto kInPlace = [](auto& values) { return values.data(); };

template <class T>
std::vector<uint32_t> bits_of(const std::vector<T>& values) {
  std::vector<uint32_t> bits;
  for (T value : values) {
    float exact = to_float(value);
    bits.emplace_back();
    memcpy(&bits.back(), &exact, sizeof(exact));
  }
  return bits;
}

template <class T, class Kv = T>
void check_on_threads(const AttentionShape& shape) {
  AttentionCase<T, Kv> serial(shape, 1);
  AttentionCase<T, Kv> threads = serial;
  verify_attention_cpu(serial.params(kInPlace));
  VerifyAttentionParams p = threads.params(kInPlace);
  ThreadTeam::run(1, 4, [&](ThreadTeam& team) {
    verify_attention_batch<T, Kv>(team, p,
                                  verify_attention_scratch(team, p, team.size(), team.rank()));
  });
  CHECK_EQ(bits_of(threads.out), bits_of(serial.out));
}

TEST(attention_on_threads_equals_serial) {
  for (auto window : {AttentionShape::kChain, AttentionShape::kBlock, AttentionShape::kTree}) {
    AttentionShape shape{{0, 30, 600}, {3, 40, 5}};
    shape.window = window;
    shape.sliding_window = window == AttentionShape::kChain ? 20 : 0;
    check_on_threads<float>(shape);
    check_on_threads<BFloat16>(shape);
    check_on_threads<Float16>(shape);
    check_on_threads<BFloat16, Float8>(shape);
  }
}

// By the definition of the format, and back.
TEST(every_float8_is_read_exactly) {
  for (int bits = 0; bits < 256; ++bits) {
    const Float8 stored{static_cast<uint8_t>(bits)};
    const float value = to_float(stored);
    const int exponent = bits >> 3 & 15;
    const int units = exponent == 0 ? bits & 7 : 8 + (bits & 7);
    if ((bits & 127) == 127) {
      CHECK(std::isnan(value));
      continue;
    }
    CHECK_EQ(std::fabs(value), std::ldexp(static_cast<float>(units), std::max(exponent, 1) - 10));
    CHECK_EQ(std::signbit(value), bits >= 128);
    CHECK_EQ(testing::nearest_float8(value).bits, stored.bits);
  }
  CHECK_EQ(to_float(testing::nearest_float8(1e9f)), 448.0f);
}

// Every float16, and the numbers halfway between two, as the processor rounds them.
TEST(floats_are_stored_to_the_nearest) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Float16 half{static_cast<uint16_t>(bits)};
    BFloat16 brain{static_cast<uint16_t>(bits)};
    float value = to_float(half);
    if (value != value || std::isinf(value)) continue;
    Float16 stored;
    store_float(value, &stored);
    CHECK_EQ(stored.bits, half.bits);
    if ((bits & 0x7fff) >= 0x7bff || (bits & 0x7c00) >= 0x7800) continue;
    float above = to_float(Float16{static_cast<uint16_t>(bits + 1)});
    store_float((value + above) / 2, &stored);
    CHECK_EQ(stored.bits, bits + (bits & 1));
    store_float(std::nextafter((value + above) / 2, above), &stored);
    CHECK_EQ(stored.bits, bits + 1);

    BFloat16 stored_brain;
    float middle = to_float(brain);
    store_float(middle, &stored_brain);
    CHECK_EQ(stored_brain.bits, brain.bits);
    uint32_t half_way = bits << 16 | 0x8000;
    memcpy(&middle, &half_way, sizeof(middle));
    if (middle != middle || std::isinf(middle)) continue;
    store_float(middle, &stored_brain);
    CHECK_EQ(stored_brain.bits, bits + (bits & 1));
  }
  Float16 stored;
  store_float(65519.0f, &stored);
  CHECK_EQ(stored.bits, 0x7bff);
  store_float(65520.0f, &stored);
  CHECK_EQ(stored.bits, 0x7c00);
  store_float(-INFINITY, &stored);
  CHECK_EQ(stored.bits, 0xfc00);
  store_float(NAN, &stored);
  CHECK(std::isnan(to_float(stored)));
  BFloat16 brain;
  store_float(NAN, &brain);
  CHECK(std::isnan(to_float(brain)));
  store_float(INFINITY, &brain);
  CHECK_EQ(brain.bits, 0x7f80);
}

}  // namespace
}  // namespace specfast
