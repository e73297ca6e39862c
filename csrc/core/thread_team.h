#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/team.h"

namespace specfast {

// parts x threads of std::thread that play a cluster on the CPU, so that ThreadSanitizer and
// AddressSanitizer see what a kernel's threads would do to each other. For tests.
class ThreadTeam : public SingleLanes {
 public:
  static constexpr bool kOnDevice = false;

  // Runs body(team) on every thread of a fresh team. The barrier number `dropped_barrier`
  // (counted over each thread's wait, collect and sync_part calls) is left out: a test plants that
  // fault and expects ThreadSanitizer to find it.
  template <class Body>
  static void run(int parts, int threads, Body body, int dropped_barrier = -1) {
    Shared shared(parts, threads);
    std::vector<std::thread> pool;
    for (int part = 0; part < parts; ++part) {
      for (int rank = 0; rank < threads; ++rank) {
        pool.emplace_back([=, &shared] {
          ThreadTeam team(&shared, part, rank, dropped_barrier);
          // Without this a short body ends before the next thread starts, and races stay unseen.
          shared.barrier.wait();
          body(team);
        });
      }
    }
    for (std::thread& thread : pool) thread.join();
  }

  int rank() const { return rank_; }
  int size() const { return shared_->threads; }
  int part() const { return part_; }
  int parts() const { return shared_->parts; }

  void sync_part() {
    if (calls_++ != dropped_barrier_) part_state().barrier.wait();
  }
  void arrive() {}
  void wait() {
    if (calls_++ != dropped_barrier_) shared_->barrier.wait();
  }

  template <class T>
  T* scratch(int n) {
    char* mine = shared_->block(scratch_.size(), sizeof(T) * static_cast<size_t>(n), part_);
    scratch_.push_back(mine);
    return reinterpret_cast<T*>(mine);
  }

  // As on a device, an exchange orders what was posted and nothing else.
  void post(int part, uint64_t* word, uint64_t value, int turn) {
    *remote(part, word) = value;
    shared_->part_states[part]->posted[turn].fetch_add(1, std::memory_order_release);
  }
  void collect(int n, int turn) {
    expected_[turn] += n;
    if (calls_++ == dropped_barrier_) return;
    std::atomic<int64_t>& posted = part_state().posted[turn];
    while (posted.load(std::memory_order_acquire) < expected_[turn]) std::this_thread::yield();
  }

  KeyFlag max_key(uint64_t key, bool flag, int group_size) {
    std::vector<Slot>& slots = publish({key, flag, 0});
    KeyFlag out{0, false};
    int first = rank_ / group_size * group_size;
    for (int i = first; i < first + group_size; ++i) {
      out = {max_of(out.key, slots[i].key), out.flag || slots[i].flag};
    }
    finish();
    return out;
  }
  KeyFlag largest(const uint64_t* keys, int n) { return largest_flagged_key(keys, n); }
  int min(int value) {
    std::vector<Slot>& slots = publish({0, false, value});
    int out = value;
    for (const Slot& slot : slots) out = min_of(out, slot.value);
    finish();
    return out;
  }
  int sum(int value) {
    std::vector<Slot>& slots = publish({0, false, value});
    int out = 0;
    for (const Slot& slot : slots) out += slot.value;
    finish();
    return out;
  }
  int64_t sum(int64_t value) {
    std::vector<Slot>& slots = publish({static_cast<uint64_t>(value), false, 0});
    int64_t out = 0;
    for (const Slot& slot : slots) out += static_cast<int64_t>(slot.key);
    finish();
    return out;
  }
  int count(bool value) { return sum(value ? 1 : 0); }
  bool any(bool value) { return count(value) > 0; }
  KeyRange union_of(KeyRange range) {
    std::vector<Slot>& slots = publish({uint64_t{range.lowest} << 32 | range.highest, false, 0});
    for (const Slot& slot : slots) {
      range.lowest = min_of(range.lowest, static_cast<uint32_t>(slot.key >> 32));
      range.highest = max_of(range.highest, static_cast<uint32_t>(slot.key));
    }
    finish();
    return range;
  }
  CountPair exclusive_count(bool a, bool b, CountPair* total) {
    std::vector<Slot>& slots = publish({0, a, b ? 1 : 0});
    CountPair before{0, 0};
    CountPair all{0, 0};
    for (int i = 0; i < size(); ++i) {
      CountPair here{slots[i].flag ? 1 : 0, slots[i].value};
      if (i < rank_) before = before + here;
      all = all + here;
    }
    finish();
    *total = all;
    return before;
  }

  void atomic_or(uint32_t* target, uint32_t bits) {
    __atomic_fetch_or(target, bits, __ATOMIC_RELAXED);
  }
  int32_t atomic_add(int32_t* target, int32_t value) {
    return __atomic_fetch_add(target, value, __ATOMIC_RELAXED);
  }

  template <class T>
  T peek(const T* source) {
    T value;
    __atomic_load(source, &value, __ATOMIC_RELAXED);
    return value;
  }
  uint64_t fetch_or(uint64_t* target, uint64_t bits) {
    return __atomic_fetch_or(target, bits, __ATOMIC_ACQ_REL);
  }

  int subgroup() const { return rank_; }
  int subgroups() const { return size(); }
  uint32_t lower_bound_of_nth(uint32_t order, int n) {
    std::vector<Slot>& slots = publish({order, false, 0});
    std::vector<uint32_t> orders;
    for (const Slot& slot : slots) orders.push_back(static_cast<uint32_t>(slot.key));
    finish();
    if (n > size()) return 0;
    std::sort(orders.begin(), orders.end());
    return orders[size() - max_of(n, 1)];
  }

  void atomic_min(int32_t* target, int32_t value) {
    int32_t seen = __atomic_load_n(target, __ATOMIC_RELAXED);
    while (value < seen && !__atomic_compare_exchange_n(target, &seen, value, true,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }

 private:
  // Takes no lock: a lock would order the very accesses whose order is under test.
  template <class T>
  T* remote(int part, T* pointer) {
    const char* address = reinterpret_cast<const char*>(pointer);
    for (size_t i = 0; i < scratch_.size(); ++i) {
      std::vector<std::vector<char>>& copies = *shared_->blocks[i];
      if (address >= scratch_[i] && address < scratch_[i] + copies[part_].size()) {
        return reinterpret_cast<T*>(copies[part].data() + (address - scratch_[i]));
      }
    }
    return nullptr;
  }

  struct Slot {
    uint64_t key;
    bool flag;
    int value;
  };

  // Spins on a counter instead of sleeping on a mutex: a thread that wakes late would lock the
  // mutex after the others' next arrival, and so be ordered after accesses it never waited for.
  class Barrier {
   public:
    explicit Barrier(int count) : count_(count) {}
    void wait() {
      int64_t generation = generation_.load(std::memory_order_acquire);
      if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
        arrived_.store(0, std::memory_order_relaxed);
        generation_.store(generation + 1, std::memory_order_release);
      } else {
        while (generation_.load(std::memory_order_acquire) == generation) {
          std::this_thread::yield();
        }
      }
    }

   private:
    int count_;
    std::atomic<int> arrived_{0};
    std::atomic<int64_t> generation_{0};
  };

  struct PartState {
    explicit PartState(int threads) : barrier(threads), slots(threads) {}
    Barrier barrier;
    std::vector<Slot> slots;
    std::array<std::atomic<int64_t>, kExchangeTurns> posted{};  // words, of all exchanges of a turn
  };

  static constexpr size_t kMaxScratchBlocks = 64;

  struct Shared {
    Shared(int parts_, int threads_)
        : parts(parts_), threads(threads_), barrier(parts_ * threads_), blocks(kMaxScratchBlocks) {
      for (int i = 0; i < parts; ++i) part_states.push_back(std::make_unique<PartState>(threads));
    }
    // Scratch block number `index` of a part. The first to ask allocates every part's copy.
    char* block(size_t index, size_t bytes, int part) {
      std::lock_guard<std::mutex> lock(mutex);
      if (blocks.at(index) == nullptr) {
        std::vector<std::vector<char>> copies(parts, std::vector<char>(bytes));
        blocks[index] = std::make_unique<std::vector<std::vector<char>>>(std::move(copies));
      }
      return (*blocks[index])[part].data();
    }
    int parts;
    int threads;
    Barrier barrier;
    std::mutex mutex;
    std::vector<std::unique_ptr<std::vector<std::vector<char>>>> blocks;
    std::vector<std::unique_ptr<PartState>> part_states;
  };

  ThreadTeam(Shared* shared, int part, int rank, int dropped_barrier)
      : shared_(shared), part_(part), rank_(rank), dropped_barrier_(dropped_barrier) {}

  PartState& part_state() { return *shared_->part_states[part_]; }

  std::vector<Slot>& publish(Slot slot) {
    part_state().slots[rank_] = slot;
    part_state().barrier.wait();
    return part_state().slots;
  }
  void finish() { part_state().barrier.wait(); }

  Shared* shared_;
  int part_;
  int rank_;
  int dropped_barrier_;
  int calls_ = 0;
  std::array<int64_t, kExchangeTurns> expected_{};  // words that it has collected
  std::vector<char*> scratch_;
};

}  // namespace specfast
