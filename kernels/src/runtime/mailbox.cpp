// SPDX-License-Identifier: Apache-2.0
//
// Notifies one worker of items from any number of submitters: waiters spin, then sleep on a futex.
//
// Reasons for the memory orders
// -----------------------------
// Data. An item is written before its post and read after `next` returned. The post is a
// read-modify-write of `posts_` that releases; the worker's load of it acquires. Posts by other
// threads in between keep the chain (a read-modify-write continues the release sequence it reads
// from), so a worker that reads n sees the items of all n posts, of any thread. Back: the
// worker's store to `done_` releases, a submitter's load of it acquires.
//
// Sleep. Going to sleep and waking are the two halves of Dekker's handshake: the sleeper writes its
// flag and then reads the count; the waker writes the count and then reads the flag. At least one
// of them must see the other's write, or a sleeper is never woken. Release and acquire do not
// guarantee that, because they let a thread read before its own earlier write is visible. All four
// operations are therefore seq_cst. There are no fences: ThreadSanitizer does not support them, and
// on x86-64 a seq_cst write costs the same.
//
// A futex holds 32 bits and the counts have 64, so each side sleeps on a word of its own.
//
// Nothing here needs the C++ runtime library, whose versions differ between machines.
#include "xkernels/mailbox.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace {

constexpr int64_t kNoDeadline = INT64_MAX;
constexpr int64_t kYieldAfterNs = 10000;
constexpr int kPausesBetweenLooks = 8;
constexpr size_t kCacheLine = 64;

static_assert(std::atomic<int64_t>::is_always_lock_free, "a lock could be held by a sleeper");
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads it as a word");

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// `duration_us` from now; no deadline for more than 292 years.
int64_t deadline_after(int64_t duration_us) {
  const int64_t now = now_ns();
  if (duration_us < 0 || duration_us >= (kNoDeadline - now) / 1000) return kNoDeadline;
  return now + duration_us * 1000;
}

// Tells the core that this is a spin loop, which saves power and leaves time to its SMT sibling.
void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#else
  asm volatile("" ::: "memory");
#endif
}

// Spins until `ready` returns true, for at most `spin_us`; returns its last result.
//
// For the first microseconds it keeps its CPU: a hand-off between two cores takes no longer, and
// yielding costs more than it gains. Then it yields between looks, because the other thread may
// need a CPU. It yields at once if the other thread last ran on `other_cpu` and that is the
// caller's CPU.
template <typename Ready>
bool spin(int32_t spin_us, int64_t deadline_ns, int32_t other_cpu, Ready ready) {
  if (spin_us == 0) return ready();
  const int64_t yield_after_ns = other_cpu == sched_getcpu() ? 0 : kYieldAfterNs;
  const int64_t start = now_ns();
  const int64_t wanted = start + int64_t{spin_us} * 1000;
  const int64_t end = wanted < deadline_ns ? wanted : deadline_ns;
  for (int64_t now = start; now < end; now = now_ns()) {
    if (now - start < yield_after_ns) {
      for (int i = 0; i < kPausesBetweenLooks; ++i) {
        if (ready()) return true;
        pause();
      }
    } else {
      if (ready()) return true;
      sched_yield();
    }
  }
  return ready();
}

// Sleeps while `word` is `expected`, until woken for one of `bits`. Returns 0, also spuriously, or
// an errno: EAGAIN if the word was another, EINTR, ETIMEDOUT.
int futex_wait(std::atomic<uint32_t>* word, uint32_t expected, uint32_t bits, int64_t deadline_ns) {
  timespec deadline;
  timespec* limit = nullptr;
  if (deadline_ns != kNoDeadline) {
    deadline.tv_sec = static_cast<time_t>(deadline_ns / 1000000000);
    deadline.tv_nsec = static_cast<long>(deadline_ns % 1000000000);
    limit = &deadline;
  }
  // WAIT_BITSET, unlike WAIT, takes a point in time on CLOCK_MONOTONIC.
  const long failed = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected,
                              limit, nullptr, bits);
  return failed ? errno : 0;
}

void futex_wake(std::atomic<uint32_t>* word, int sleepers, uint32_t bits) {
  syscall(SYS_futex, word, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, sleepers, nullptr, nullptr,
          bits);
}

// The waiter for a ticket sleeps under one of 32 bits, so that only waiters for tickets that may be
// done are woken.
uint32_t bit_of(int64_t ticket) { return uint32_t{1} << (ticket % 32); }

// The bits of the tickets first..last.
uint32_t bits_of(int64_t first, int64_t last) {
  if (last - first >= 31) return FUTEX_BITSET_MATCH_ANY;
  uint32_t bits = 0;
  for (int64_t ticket = first; ticket <= last; ++ticket) bits |= bit_of(ticket);
  return bits;
}

// The number of posts and the closed flag, in one word: posts before the close are counted, and
// none after it.
class Posts {
 public:
  explicit Posts(int64_t word) : word_(word) {}
  int64_t count() const { return word_ >> 1; }
  bool closed() const { return (word_ & kClosed) != 0; }
  // Whether a worker that has done `done` items can stop waiting.
  bool news(int64_t done) const { return count() > done || closed(); }

  static constexpr int64_t kClosed = 1;
  static constexpr int64_t kOnePost = 2;

 private:
  int64_t word_;
};

}  // namespace

struct xk_mailbox {
 public:
  xk_mailbox(int32_t spin_us, int32_t grace_us) : spin_us_(spin_us), grace_us_(grace_us) {}

  int64_t post() {
    submitter_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
    int64_t seen = posts_.load(std::memory_order_relaxed);
    do {
      if (Posts(seen).closed()) return XK_CLOSED;
    } while (!posts_.compare_exchange_weak(seen, seen + Posts::kOnePost, std::memory_order_seq_cst,
                                           std::memory_order_relaxed));
    wake_worker();
    return Posts(seen).count() + 1;
  }

  void close() {
    posts_.fetch_or(Posts::kClosed, std::memory_order_seq_cst);
    wake_worker();
  }

  int64_t next(int64_t done) {
    // Only the worker, the caller, writes done_.
    const int64_t done_before = done_.load(std::memory_order_relaxed);
    Posts posts(posts_.load(std::memory_order_acquire));
    if (done < done_before || done > posts.count()) return XK_INVALID_ARGUMENT;
    if (done > done_before) tell_done(done_before, done);

    const bool waits = !posts.news(done);
    if (waits) {
      const auto news = [&] {
        posts = Posts(posts_.load(std::memory_order_acquire));
        return posts.news(done);
      };
      const int32_t submitter_cpu = submitter_cpu_.load(std::memory_order_relaxed);
      if (!spin(spin_us_, kNoDeadline, submitter_cpu, news) && !sleep_until_news(done, &posts)) {
        return XK_INTERRUPTED;
      }
    }
    if (posts.count() <= done) return XK_CLOSED;
    worker_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
    if (waits && grace_us_ > 0) {
      spin(grace_us_, kNoDeadline, submitter_cpu_.load(std::memory_order_relaxed),
           [&] { return awaited_.load(std::memory_order_relaxed) > done; });
    }
    return posts.count();
  }

  bool ready(int64_t done) const {
    return Posts(posts_.load(std::memory_order_acquire)).news(done);
  }

  int32_t await(int64_t ticket, int64_t timeout_us) {
    const auto is_done = [&] { return done_.load(std::memory_order_acquire) >= ticket; };
    if (is_done()) return 0;
    if (ticket > Posts(posts_.load(std::memory_order_relaxed)).count()) return XK_INVALID_ARGUMENT;
    say_awaited(ticket);
    const int64_t deadline_ns = deadline_after(timeout_us);
    const int32_t worker_cpu = worker_cpu_.load(std::memory_order_relaxed);
    if (spin(spin_us_, deadline_ns, worker_cpu, is_done)) return 0;

    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    int32_t result = 0;
    while (true) {
      const uint32_t word = done_word_.load(std::memory_order_seq_cst);
      // After the word was read: otherwise `done_` and the word could both change in between, and
      // the futex would sleep on the new word.
      if (is_done()) break;
      const int error = futex_wait(&done_word_, word, bit_of(ticket), deadline_ns);
      if (error == EINTR || error == ETIMEDOUT) {
        if (!is_done()) result = error == EINTR ? XK_INTERRUPTED : XK_TIMED_OUT;
        break;
      }
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return result;
  }

 private:
  enum : uint32_t { kAwake, kAsleep };

  // While the worker is awake, submitters read one word and make no system call. Of several
  // submitters, the one that resets the word makes it.
  void wake_worker() {
    if (worker_.load(std::memory_order_seq_cst) == kAwake) return;
    if (worker_.exchange(kAwake, std::memory_order_seq_cst) == kAwake) return;
    futex_wake(&worker_, 1, FUTEX_BITSET_MATCH_ANY);
  }

  // Worker: returns false if a signal came and there is no news.
  bool sleep_until_news(int64_t done, Posts* posts) {
    int error = 0;
    while (true) {
      worker_.store(kAsleep, std::memory_order_seq_cst);
      *posts = Posts(posts_.load(std::memory_order_seq_cst));
      if (posts->news(done) || error == EINTR) break;
      error = futex_wait(&worker_, kAsleep, FUTEX_BITSET_MATCH_ANY, kNoDeadline);
    }
    // A submitter that just saw kAsleep makes a needless wake, which is harmless.
    worker_.store(kAwake, std::memory_order_relaxed);
    return posts->news(done);
  }

  // Worker: publishes that items up to `done` are done, and wakes their waiters.
  void tell_done(int64_t done_before, int64_t done) {
    done_.store(done, std::memory_order_release);
    // The low half of `done`: it differs from what a sleeper saw unless 2^32 items were done
    // between two instructions of that sleeper.
    done_word_.store(static_cast<uint32_t>(done), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    futex_wake(&done_word_, INT_MAX, bits_of(done_before + 1, done));
  }

  // Stores the highest ticket that was ever awaited. A count of current waiters would not do,
  // because they leave only some time after their item is done.
  void say_awaited(int64_t ticket) {
    int64_t seen = awaited_.load(std::memory_order_relaxed);
    while (seen < ticket && !awaited_.compare_exchange_weak(seen, ticket, std::memory_order_relaxed,
                                                            std::memory_order_relaxed)) {
    }
  }

  const int32_t spin_us_;
  const int32_t grace_us_;
  // Written by submitters, read by the worker.
  alignas(kCacheLine) std::atomic<int64_t> posts_{0};
  std::atomic<int64_t> awaited_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<int32_t> submitter_cpu_{-1};
  // Written by the worker, read by submitters.
  alignas(kCacheLine) std::atomic<int64_t> done_{0};
  std::atomic<uint32_t> done_word_{0};
  std::atomic<uint32_t> worker_{kAwake};
  std::atomic<int32_t> worker_cpu_{-1};
};

xk_mailbox* xk_mailbox_create(int32_t spin_us, int32_t grace_us) {
  if (spin_us < 0 || grace_us < 0) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignof(xk_mailbox), sizeof(xk_mailbox)) != 0) return nullptr;
  return new (memory) xk_mailbox(spin_us, grace_us);
}

void xk_mailbox_destroy(xk_mailbox* mailbox) {
  if (mailbox == nullptr) return;
  mailbox->~xk_mailbox();
  free(mailbox);
}

int64_t xk_mailbox_post(xk_mailbox* mailbox) {
  return mailbox == nullptr ? XK_INVALID_ARGUMENT : mailbox->post();
}

int64_t xk_mailbox_next(xk_mailbox* mailbox, int64_t done) {
  return mailbox == nullptr ? XK_INVALID_ARGUMENT : mailbox->next(done);
}

int32_t xk_mailbox_ready(xk_mailbox* mailbox, int64_t done) {
  return mailbox == nullptr ? XK_INVALID_ARGUMENT : mailbox->ready(done);
}

int32_t xk_mailbox_await(xk_mailbox* mailbox, int64_t ticket, int64_t timeout_us) {
  if (mailbox == nullptr || ticket < 1) return XK_INVALID_ARGUMENT;
  return mailbox->await(ticket, timeout_us);
}

void xk_mailbox_close(xk_mailbox* mailbox) {
  if (mailbox != nullptr) mailbox->close();
}
