// SPDX-License-Identifier: Apache-2.0
//
// Exercises a mailbox as a C++ program does. The first argument names what to do; each prints what
// it counted, or says what broke and ends with status 1.
//
//   handoffs SUBMITTERS ITEMS SPIN_US GRACE_US [one-cpu]
//   races ROUNDS SUBMITTERS SPIN_US
//   timeouts
//   signals
//   grace
//   calls
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "xkernels.h"

namespace {

#define REQUIRE(condition)                                                 \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

constexpr int64_t kNoLimit = -1;

int64_t now_us() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000;
}

// Plain memory: the mailbox alone orders who writes and who reads it, which ThreadSanitizer checks.
struct Item {
  int submitter = 0;
  int64_t number = 0;
  int64_t answer = 0;
};

int64_t answer_to(const Item& item) { return item.number * 31 + item.submitter; }

// Items beside a mailbox: number t is put in place, then posted, under one lock of the submitters.
// The worker takes no lock: the mailbox alone makes the items visible to it.
class Desk {
 public:
  Desk(int64_t most, int32_t spin_us, int32_t grace_us)
      : mailbox(xk_mailbox_create(spin_us, grace_us)), items_(static_cast<size_t>(most) + 1) {
    REQUIRE(mailbox != nullptr);
  }
  ~Desk() { xk_mailbox_destroy(mailbox); }
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  // The ticket, or XK_CLOSED.
  int64_t hand_in(Item* item) {
    const std::lock_guard<std::mutex> hold(lock_);
    items_.at(static_cast<size_t>(posted_) + 1) = item;
    const int64_t ticket = xk_mailbox_post(mailbox);
    if (ticket != XK_CLOSED) REQUIRE(ticket == ++posted_);
    return ticket;
  }

  // Answers items until the mailbox is closed; how many there were. Each submitter's items must
  // come in the order in which it handed them in, none left out, none twice.
  int64_t work(int submitters) {
    std::vector<int64_t> expected(static_cast<size_t>(submitters), 0);
    int64_t done = 0;
    while (true) {
      const int64_t count = xk_mailbox_next(mailbox, done);
      if (count == XK_CLOSED) return done;
      REQUIRE(count > done);
      while (done < count) {
        Item& item = *items_.at(static_cast<size_t>(++done));
        REQUIRE(item.number == expected[static_cast<size_t>(item.submitter)]++);
        item.answer = answer_to(item);
      }
    }
  }

  xk_mailbox* const mailbox;

 private:
  std::mutex lock_;
  std::vector<Item*> items_;
  int64_t posted_ = 0;
};

// Submitters hand in `items` each. Even ones await each item at once; odd ones let a few wait and
// await the last of them first.
void handoffs(int submitters, int64_t items, int32_t spin_us, int32_t grace_us) {
  Desk desk(submitters * items, spin_us, grace_us);
  std::atomic<int64_t> right{0};
  int64_t worked = 0;
  std::thread worker([&] { worked = desk.work(submitters); });
  std::vector<std::thread> threads;
  for (int submitter = 0; submitter < submitters; ++submitter) {
    threads.emplace_back([&, submitter] {
      const size_t batch = submitter % 2 == 0 ? 1 : 5;
      std::vector<Item> out(batch);
      std::vector<int64_t> tickets(batch);
      for (int64_t number = 0; number < items;) {
        size_t count = 0;
        for (; count < batch && number < items; ++count, ++number) {
          out[count] = Item{submitter, number, -1};
          tickets[count] = desk.hand_in(&out[count]);
          REQUIRE(tickets[count] > 0);
        }
        while (count-- > 0) {
          REQUIRE(xk_mailbox_await(desk.mailbox, tickets[count], kNoLimit) == 0);
          REQUIRE(out[count].answer == answer_to(out[count]));
          ++right;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  xk_mailbox_close(desk.mailbox);
  worker.join();
  std::printf("%lld right of %lld\n", static_cast<long long>(right),
              static_cast<long long>(worked));
}

// The mailbox is closed while submitters hand in: what was accepted is done, what was refused is
// not, and everybody comes to an end.
void races(int rounds, int submitters, int32_t spin_us) {
  constexpr int64_t kMost = 10000;
  int64_t accepted_ever = 0;
  for (int round = 0; round < rounds; ++round) {
    Desk desk(submitters * kMost, spin_us, 0);
    std::atomic<int64_t> accepted{0};
    int64_t worked = 0;
    std::thread worker([&] { worked = desk.work(submitters); });
    std::vector<std::thread> threads;
    for (int submitter = 0; submitter < submitters; ++submitter) {
      threads.emplace_back([&, submitter] {
        for (int64_t number = 0; number < kMost; ++number) {
          Item item{submitter, number, -1};
          const int64_t ticket = desk.hand_in(&item);
          if (ticket == XK_CLOSED) return;
          ++accepted;
          REQUIRE(xk_mailbox_await(desk.mailbox, ticket, kNoLimit) == 0);
          REQUIRE(item.answer == answer_to(item));
        }
      });
    }
    // A round closes before the first item, after it, after the second...
    while (accepted < round % 7) sched_yield();
    xk_mailbox_close(desk.mailbox);
    xk_mailbox_close(desk.mailbox);
    worker.join();
    for (std::thread& thread : threads) thread.join();
    REQUIRE(xk_mailbox_post(desk.mailbox) == XK_CLOSED);
    REQUIRE(worked == accepted);
    accepted_ever += accepted;
  }
  std::printf("%d rounds, all of %lld accepted\n", rounds, static_cast<long long>(accepted_ever));
}

void timeouts() {
  int count = 0;
  for (const int32_t spin_us : {0, 100, 50000}) {
    xk_mailbox* mailbox = xk_mailbox_create(spin_us, 0);
    REQUIRE(xk_mailbox_post(mailbox) == 1);
    for (const int64_t timeout_us : {0, 1, 1000, 20000}) {
      const int64_t start = now_us();
      REQUIRE(xk_mailbox_await(mailbox, 1, timeout_us) == XK_TIMED_OUT);
      REQUIRE(now_us() - start >= timeout_us);
      ++count;
    }
    // A worker that says it is done ends a wait, whose limit may be beyond what a clock can count.
    std::thread waiter([&] { REQUIRE(xk_mailbox_await(mailbox, 1, INT64_MAX) == 0); });
    REQUIRE(xk_mailbox_next(mailbox, 0) == 1);
    REQUIRE(xk_mailbox_post(mailbox) == 2);
    REQUIRE(xk_mailbox_next(mailbox, 1) == 2);
    waiter.join();
    REQUIRE(xk_mailbox_await(mailbox, 1, 0) == 0);
    xk_mailbox_destroy(mailbox);
  }
  std::printf("%d timeouts\n", count);
}

std::atomic<int> handled{0};

// Sends the thread signals until `over`: one that comes before it sleeps has no effect.
void interrupt(std::thread* thread, const std::atomic<bool>* over) {
  while (!*over) {
    pthread_kill(thread->native_handle(), SIGUSR1);
    sched_yield();
  }
}

void signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { ++handled; };  // no SA_RESTART
  REQUIRE(sigaction(SIGUSR1, &action, nullptr) == 0);
  xk_mailbox* mailbox = xk_mailbox_create(10, 0);

  std::atomic<bool> interrupted{false};
  std::thread worker([&] {
    REQUIRE(xk_mailbox_next(mailbox, 0) == XK_INTERRUPTED);
    interrupted = true;
    int64_t count;
    do {
      count = xk_mailbox_next(mailbox, 0);
    } while (count == XK_INTERRUPTED);
    REQUIRE(count == 1);
  });
  interrupt(&worker, &interrupted);
  REQUIRE(xk_mailbox_post(mailbox) == 1);
  worker.join();

  interrupted = false;
  std::thread submitter([&] {
    REQUIRE(xk_mailbox_await(mailbox, 1, kNoLimit) == XK_INTERRUPTED);
    REQUIRE(xk_mailbox_await(mailbox, 1, 60000000) == XK_INTERRUPTED);
    interrupted = true;
    int32_t result;
    do {
      result = xk_mailbox_await(mailbox, 1, kNoLimit);
    } while (result == XK_INTERRUPTED);
    REQUIRE(result == 0);
  });
  interrupt(&submitter, &interrupted);
  xk_mailbox_close(mailbox);
  REQUIRE(xk_mailbox_next(mailbox, 1) == XK_CLOSED);
  submitter.join();
  xk_mailbox_destroy(mailbox);
  REQUIRE(handled >= 3);
  std::printf("interrupted 3 times\n");
}

// With all the time in the world, a worker that had to wait starts only when its submitter waits.
void grace() {
  constexpr int32_t kForever = INT32_MAX;
  constexpr int64_t kRounds = 200;
  xk_mailbox* mailbox = xk_mailbox_create(0, kForever);
  std::atomic<int64_t> waiting{0};
  std::atomic<int64_t> asks{-1};
  std::thread worker([&] {
    for (int64_t done = 0; done < kRounds; ++done) {
      asks = done;
      REQUIRE(xk_mailbox_next(mailbox, done) == done + 1);
      REQUIRE(waiting == done + 1);
    }
    // An item that is there already is taken at once.
    REQUIRE(xk_mailbox_post(mailbox) == kRounds + 1);
    REQUIRE(xk_mailbox_next(mailbox, kRounds) == kRounds + 1);
    // Nobody comes any more: nobody is waited for.
    xk_mailbox_close(mailbox);
    REQUIRE(xk_mailbox_next(mailbox, kRounds + 1) == XK_CLOSED);
  });
  for (int64_t ticket = 1; ticket <= kRounds; ++ticket) {
    // Until the worker asks there is nothing for it to wait for; after that it sleeps or soon will.
    while (asks < ticket - 1) sched_yield();
    for (int i = 0; i < 50; ++i) sched_yield();
    REQUIRE(xk_mailbox_post(mailbox) == ticket);
    for (int i = 0; i < 50; ++i) sched_yield();
    waiting = ticket;
    REQUIRE(xk_mailbox_await(mailbox, ticket, kNoLimit) == 0);
  }
  worker.join();
  xk_mailbox_destroy(mailbox);
  std::printf("%lld waited for\n", static_cast<long long>(kRounds));
}

std::atomic<int> futex_calls{0};
std::atomic<int> futex_wakes{0};

// Who finds nobody asleep makes no system call.
void calls() {
  xk_mailbox* mailbox = xk_mailbox_create(0, 0);
  constexpr int64_t kItems = 1000;
  for (int64_t ticket = 1; ticket <= kItems; ++ticket) {
    REQUIRE(xk_mailbox_post(mailbox) == ticket);
  }
  REQUIRE(xk_mailbox_next(mailbox, 0) == kItems);
  for (int64_t done = 1; done < kItems; ++done) {
    REQUIRE(xk_mailbox_next(mailbox, done) == kItems);
    REQUIRE(xk_mailbox_await(mailbox, done, kNoLimit) == 0);
  }
  REQUIRE(futex_calls == 0);

  // One that sleeps is woken by one call.
  std::thread submitter([&] { REQUIRE(xk_mailbox_await(mailbox, kItems, kNoLimit) == 0); });
  while (futex_calls == 0) sched_yield();
  xk_mailbox_close(mailbox);
  REQUIRE(futex_wakes == 0);
  REQUIRE(xk_mailbox_next(mailbox, kItems) == XK_CLOSED);
  submitter.join();
  REQUIRE(futex_wakes == 1);
  xk_mailbox_destroy(mailbox);
  std::printf("%d wake\n", futex_wakes.load());
}

void stay_on_one_cpu() {
  cpu_set_t allowed, one;
  REQUIRE(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
}

}  // namespace

using Syscall = long (*)(long, ...);
const Syscall next_syscall = reinterpret_cast<Syscall>(dlsym(RTLD_NEXT, "syscall"));

// In the way of the library's system calls, which it makes through this one function: counts those
// on futexes and hands all on.
extern "C" long syscall(long number, ...) noexcept {
  va_list given;
  va_start(given, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(given, long);
  va_end(given);
  if (number == SYS_futex) {
    ++futex_calls;
    const long operation = arguments[1] & FUTEX_CMD_MASK;
    if (operation == FUTEX_WAKE || operation == FUTEX_WAKE_BITSET) ++futex_wakes;
  }
  return next_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                      arguments[5]);
}

int main(int count, char** values) {
  const std::vector<std::string> words(values + 1, values + count);
  const auto number = [&](size_t i) { return std::atoi(words.at(i).c_str()); };
  const std::string what = words.at(0);
  if (what == "handoffs") {
    if (words.size() > 5) stay_on_one_cpu();
    handoffs(number(1), number(2), number(3), number(4));
  } else if (what == "races") {
    races(number(1), number(2), number(3));
  } else if (what == "timeouts") {
    timeouts();
  } else if (what == "signals") {
    signals();
  } else if (what == "grace") {
    grace();
  } else {
    REQUIRE(what == "calls");
    calls();
  }
  return 0;
}
