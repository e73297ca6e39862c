#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/types.h"
#include "testing.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace specfast::testing {

// Whether reads and writes of these bytes are reported by AddressSanitizer, where it is there.
inline void forbid(const uint8_t* begin, const uint8_t* end, bool forbidden) {
#if defined(__SANITIZE_ADDRESS__)
  forbidden ? __asan_poison_memory_region(begin, end - begin)
            : __asan_unpoison_memory_region(begin, end - begin);
#else
  (void)begin, (void)end, (void)forbidden;
#endif
}

// Random numbers of one batch: the same on every machine, and cheap to start.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}

  // splitmix64
  uint64_t bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int pick(int low, int high) {
    return low + static_cast<int>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return pick(0, 99) < percent; }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
  template <class T>
  T choose(std::initializer_list<T> of) {
    return of.begin()[pick(0, static_cast<int>(of.size()) - 1)];
  }

 private:
  uint64_t state_;
};

// All arrays of one call, in one block with guard bytes between them. Whatever changes outside of
// the outputs (inputs or guards) is found by comparing the block with what it was before; under
// AddressSanitizer the guards cannot be read either.
class FuzzMemory {
 public:
  static constexpr size_t kGuardBytes = 64;
  static constexpr size_t kAlignment = 256;  // as cudaMalloc's
  static constexpr uint8_t kGuard = 0xA5;
  static constexpr uint8_t kUnwritten = 0x5C;

  explicit FuzzMemory(size_t capacity)
      : capacity_(capacity), block_(static_cast<uint8_t*>(aligned_alloc(kAlignment, capacity))) {
    reset();
  }
  ~FuzzMemory() { open_guards(); }

  void reset() {
    outputs_.clear();
    arrays_.clear();
    used_ = 0;
    add_guard();
  }

  // An array of n elements whose values follow, `offset` elements behind an aligned address.
  template <class T>
  T* input(int64_t n, int offset = 0) {
    return reinterpret_cast<T*>(add(sizeof(T) * offset, sizeof(T) * n));
  }
  template <class T>
  T* output(int64_t n) {
    uint8_t* begin = add(0, sizeof(T) * n);
    memset(begin, kUnwritten, sizeof(T) * n);
    outputs_.push_back({begin, sizeof(T) * n});
    return reinterpret_cast<T*>(begin);
  }

  // Between these two only outputs may change.
  void begin_call() {
    before_.assign(block_.get(), block_.get() + used_);
    uint8_t* end = block_.get();
    for (const Range& array : arrays_) {
      forbid(end, array.begin, true);
      end = array.begin + array.size;
    }
    forbid(end, block_.get() + capacity_, true);
  }
  void end_call() {
    open_guards();
    const uint8_t* from = block_.get();
    for (const Range& output : outputs_) {
      check_unchanged(from, output.begin);
      from = output.begin + output.size;
    }
    check_unchanged(from, block_.get() + used_);
  }

  // Fails where the block differs from what it should be.
  void check_equal(const std::vector<uint8_t>& expected) const {
    if (memcmp(block_.get(), expected.data(), used_) == 0) return;
    size_t at = 0;
    while (block_.get()[at] == expected[at]) ++at;
    throw Failure("another byte is left in " + describe(at));
  }

  // Where a byte lies, for a message.
  std::string describe(size_t at) const {
    for (size_t i = 0; i < arrays_.size(); ++i) {
      size_t begin = arrays_[i].begin - block_.get();
      if (at < begin) return "the guard before array " + std::to_string(i);
      if (at < begin + arrays_[i].size) {
        return "array " + std::to_string(i) + " at " + std::to_string(at - begin) + " of " +
               std::to_string(arrays_[i].size) + " bytes";
      }
    }
    return "the last guard";
  }

  // The whole block, and what it was before the call.
  uint8_t* data() const { return block_.get(); }
  size_t size() const { return used_; }
  const std::vector<uint8_t>& before() const { return before_; }

 private:
  struct Range {
    uint8_t* begin;
    size_t size;
  };
  struct Free {
    void operator()(uint8_t* block) const { free(block); }
  };

  uint8_t* add(size_t offset, size_t bytes) {
    used_ = (used_ + 15) / 16 * 16 + offset;
    CHECK(used_ + bytes + 2 * kGuardBytes <= capacity_);
    uint8_t* begin = block_.get() + used_;
    arrays_.push_back({begin, bytes});
    used_ += bytes;
    add_guard();
    return begin;
  }
  void add_guard() {
    // The next array begins up to 16 bytes and an offset later.
    memset(block_.get() + used_, kGuard, min_of(2 * kGuardBytes, capacity_ - used_));
    used_ += kGuardBytes;
  }
  void open_guards() { forbid(block_.get(), block_.get() + capacity_, false); }

  void check_unchanged(const uint8_t* from, const uint8_t* to) {
    size_t at = from - block_.get();
    if (to <= from || memcmp(from, before_.data() + at, to - from) == 0) return;
    while (*from == before_[at]) ++from, ++at;
    throw Failure("a byte changed that is no output: " + describe(at));
  }

  size_t capacity_;
  std::unique_ptr<uint8_t, Free> block_;
  size_t used_ = 0;
  std::vector<Range> outputs_, arrays_;
  std::vector<uint8_t> before_;
};

}  // namespace specfast::testing
