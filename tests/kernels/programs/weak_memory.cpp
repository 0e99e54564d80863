// SPDX-License-Identifier: Apache-2.0
//
// Runs the mailbox's own source on modelled memory, in many orders of its steps.
//
// A store waits in its thread's buffer until the schedule commits it, which is how processors let a
// thread read before its own earlier write is visible. A seq_cst load waits for the seq_cst stores
// before it; no other load waits for anything. What changes and reads in one is done in memory.
//
//   weak_memory RUNS
//
// prints how many runs came to an end, or says that all threads sleep and ends with status 1.
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <random>
#include <vector>

namespace model {

struct Store {
  void* where;
  int64_t value;
  size_t size;
  bool sequential;
};

struct Thread {
  ucontext_t context;
  std::array<char, 1 << 16> stack;
  std::deque<Store> buffer;
  const void* sleeps_on = nullptr;
  uint32_t bits = 0;
  bool ended = false;
  void (*body)() = nullptr;
};

std::vector<std::unique_ptr<Thread>> threads;
Thread* running = nullptr;
ucontext_t outside;
std::minstd_rand chance;

void commit(Thread* thread) {
  const Store& store = thread->buffer.front();
  std::memcpy(store.where, &store.value, store.size);  // little-endian
  thread->buffer.pop_front();
}

void drain(Thread* thread) {
  while (!thread->buffer.empty()) commit(thread);
}

void switch_to(Thread* thread) {
  Thread* before = running;
  if (thread == before) return;
  running = thread;
  swapcontext(before == nullptr ? &outside : &before->context,
              thread == nullptr ? &outside : &thread->context);
}

// Commits stores and lets threads run as chance decides; back outside where none can.
void step() {
  if (threads.empty()) return;
  while (true) {
    std::vector<Thread*> ready, storing;
    for (const auto& thread : threads) {
      if (!thread->ended && thread->sleeps_on == nullptr) ready.push_back(thread.get());
      if (!thread->buffer.empty()) storing.push_back(thread.get());
    }
    const size_t choices = ready.size() + storing.size();
    if (choices == 0) return switch_to(nullptr);
    const size_t choice = chance() % choices;
    if (choice < ready.size()) return switch_to(ready[choice]);
    commit(storing[choice - ready.size()]);
  }
}

template <typename T>
class buffered {
 public:
  static constexpr bool is_always_lock_free = true;
  buffered(T value) : value_(value) {}

  T load(std::memory_order order) const {
    step();
    if (running == nullptr) return value_;
    if (order == std::memory_order_seq_cst) {
      for (const Store& store : running->buffer) {
        if (store.sequential) {
          drain(running);
          break;
        }
      }
    }
    const auto& buffer = running->buffer;
    for (auto store = buffer.rbegin(); store != buffer.rend(); ++store) {
      if (store->where == &value_) return static_cast<T>(store->value);
    }
    return value_;
  }

  void store(T value, std::memory_order order) {
    step();
    running->buffer.push_back({&value_, value, sizeof(T), order == std::memory_order_seq_cst});
  }

  bool compare_exchange_weak(T& expected, T wanted, std::memory_order, std::memory_order) {
    change();
    if (value_ != expected) {
      expected = value_;
      return false;
    }
    value_ = wanted;
    return true;
  }
  T exchange(T value, std::memory_order) { return changed(value); }
  T fetch_add(T value, std::memory_order) { return changed(static_cast<T>(value_now() + value)); }
  T fetch_sub(T value, std::memory_order) { return changed(static_cast<T>(value_now() - value)); }
  T fetch_or(T value, std::memory_order) { return changed(static_cast<T>(value_now() | value)); }

 private:
  void change() {
    step();
    drain(running);
  }
  T value_now() {
    change();
    return value_;
  }
  T changed(T value) {
    drain(running);
    const T before = value_;
    value_ = value;
    return before;
  }

  T value_;
};

long system_call(long number, const void* word, int operation, uint32_t value, const void*,
                 const void*, uint32_t bits) {
  if (number != SYS_futex) abort();
  step();
  drain(running);
  if ((operation & FUTEX_CMD_MASK) == FUTEX_WAKE_BITSET) {
    for (const auto& thread : threads) {
      if (thread->sleeps_on == word && (thread->bits & bits) != 0) thread->sleeps_on = nullptr;
    }
    return 0;
  }
  uint32_t found;
  std::memcpy(&found, word, sizeof found);
  if (found != value) {
    errno = EAGAIN;
    return -1;
  }
  running->sleeps_on = word;
  running->bits = bits;
  step();
  return 0;
}

}  // namespace model

namespace std {
using model::buffered;
}

#define atomic buffered
#define syscall model::system_call
#include MAILBOX_SOURCE
#undef syscall
#undef atomic

namespace {

constexpr int kSubmitters = 2;
constexpr int kItems = 2;

xk_mailbox* mailbox;
int submitters_left;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

void work() {
  int64_t done = 0;
  while (true) {
    const int64_t count = xk_mailbox_next(mailbox, done);
    if (count == XK_CLOSED) return;
    require(count > done, "the worker was called for nothing");
    ++done;
  }
}

void submit() {
  for (int i = 0; i < kItems; ++i) {
    const int64_t ticket = xk_mailbox_post(mailbox);
    require(xk_mailbox_await(mailbox, ticket, -1) == 0, "a wait failed");
  }
  if (--submitters_left == 0) xk_mailbox_close(mailbox);
}

void begin() {
  model::running->body();
  model::running->ended = true;
  model::step();
}

void start(void (*body)()) {
  auto thread = std::make_unique<model::Thread>();
  thread->body = body;
  getcontext(&thread->context);
  thread->context.uc_stack.ss_sp = thread->stack.data();
  thread->context.uc_stack.ss_size = thread->stack.size();
  thread->context.uc_link = nullptr;
  makecontext(&thread->context, begin, 0);
  model::threads.push_back(std::move(thread));
}

}  // namespace

int main(int, char** words) {
  const int runs = std::atoi(words[1]);
  for (int run = 0; run < runs; ++run) {
    model::chance.seed(static_cast<unsigned>(run) + 1);
    mailbox = xk_mailbox_create(0, 0);
    submitters_left = kSubmitters;
    start(work);
    for (int i = 0; i < kSubmitters; ++i) start(submit);
    model::step();
    for (const auto& thread : model::threads) {
      require(thread->ended, "all threads sleep: nobody was woken");
    }
    model::threads.clear();
    xk_mailbox_destroy(mailbox);
  }
  std::printf("%d runs\n", runs);
  return 0;
}
