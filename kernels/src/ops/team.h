// SPDX-License-Identifier: Apache-2.0
//
// How operators divide work among the calling thread's team, and the memory that they take for it.
#pragma once

#include <omp.h>
#include <stdint.h>
#include <stdlib.h>

namespace xkernels {

// Static, as what follows: objects for different instruction sets must not share them.
static constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
static constexpr int64_t round_up(int64_t value, int64_t to) { return divide_up(value, to) * to; }

// Items [begin, end).
struct Share {
  int64_t begin, end;
};

// Share `number` of `total` items that are divided equally among `shares`.
static inline Share share_of(int64_t total, int64_t number, int64_t shares) {
  const int64_t size = total / shares, rest = total % shares;
  const int64_t begin = number * size + (number < rest ? number : rest);
  return {begin, begin + size + (number < rest ? 1 : 0)};
}

// Calls work(number of the thread, threads) on each thread of the team, or work(0, 1) on the
// calling thread alone: waking a team takes longer than a small task.
template <typename Work>
void run_on_team(bool parallel, const Work& work) {
  if (!parallel) {
    work(0, 1);
    return;
  }
#pragma omp parallel default(none) shared(work)
  work(omp_get_thread_num(), omp_get_num_threads());
}

// Calls work(task, number of the thread) for tasks 0 to `tasks` - 1, each once, on the team or on
// the calling thread.
template <typename Work>
void run_tasks(int64_t tasks, bool parallel, const Work& work) {
  int64_t next = 0;
  run_on_team(parallel && tasks > 1, [&](int64_t thread, int64_t) {
    for (;;) {
      const int64_t task = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
      if (task >= tasks) return;
      work(task, thread);
    }
  });
}

// Memory without a constructor, which is freed with the object.
template <typename Element>
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { free(elements_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // The elements are not initialized. False without memory.
  bool allocate(int64_t count) {
    elements_ = static_cast<Element*>(malloc(sizeof(Element) * size(count)));
    return elements_ != nullptr;
  }
  bool allocate_zeros(int64_t count) {
    elements_ = static_cast<Element*>(calloc(size(count), sizeof(Element)));
    return elements_ != nullptr;
  }
  Element& operator[](int64_t at) { return elements_[at]; }
  const Element& operator[](int64_t at) const { return elements_[at]; }
  Element* data() const { return elements_; }

 private:
  static size_t size(int64_t count) { return static_cast<size_t>(count < 1 ? 1 : count); }

  Element* elements_ = nullptr;
};

// Cuts a block of memory into arrays. Without a block it only counts the bytes.
class Cutter {
 public:
  explicit Cutter(char* block) : block_(block) {}

  template <typename Element>
  Element* take(int64_t count) {
    char* const first = block_ == nullptr ? nullptr : block_ + bytes_;
    // Arrays of any element may follow.
    bytes_ += (count * static_cast<int64_t>(sizeof(Element)) + 63) / 64 * 64;
    return reinterpret_cast<Element*>(first);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* block_;
  int64_t bytes_ = 0;
};

// A block of zeros for each thread. `cut` makes the thread's struct of arrays with a Cutter.
template <typename Cut>
class ThreadMemory {
 public:
  ThreadMemory(int64_t threads, const Cut& cut) : cut_(cut) {
    Cutter counter(nullptr);
    cut(counter);
    bytes_ = counter.bytes();
    allocated_ = block_.allocate_zeros(threads * bytes_);
  }
  bool allocated() const { return allocated_; }
  auto of_thread(int64_t thread) const {
    Cutter cutter(block_.data() + thread * bytes_);
    return cut_(cutter);
  }

 private:
  const Cut& cut_;
  int64_t bytes_;
  Buffer<char> block_;
  bool allocated_;
};

// Whether `count` elements of `width` bytes can be at an address.
inline bool usable(const void* pointer, int64_t width, int64_t count = 1) {
  return count == 0 || (pointer != nullptr &&
                        reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(width) == 0);
}

// Bytes of a value of XK_FLOAT32, XK_BFLOAT16 or XK_FLOAT16.
static inline int width_of(int32_t type) { return type == XK_FLOAT32 ? 4 : 2; }

}  // namespace xkernels
