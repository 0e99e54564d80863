// SPDX-License-Identifier: Apache-2.0
//
// An OpenMP team on CPUs of its own, which other threads hand work to.
//
//   pinned_team [CPU...]
//
// The work, a sum of squares, is an ordinary OpenMP loop: it runs on the team of the thread that
// runs it, and that is what is sized and pinned here. Ends with status 1 when a mask that was read
// back, or a sum, is not what it should be.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "xkernels.h"

using CpuList = std::vector<int32_t>;

// The affinity mask of a thread; 0 is the calling one.
CpuList cpus_of(int32_t thread_id) {
  const int32_t count = xk_thread_cpus(thread_id, nullptr, 0);
  if (count < 0) throw std::runtime_error("cannot read a thread's CPUs");
  CpuList cpus(static_cast<size_t>(count));
  xk_thread_cpus(thread_id, cpus.data(), count);
  return cpus;
}

std::string text_of(const CpuList& cpus) {
  std::string text;
  for (const int32_t cpu : cpus) text += (text.empty() ? "" : ",") + std::to_string(cpu);
  return text;
}

// A thread that owns a team of one OpenMP thread a CPU and runs tasks on it, in order.
class PinnedTeam {
 public:
  // Throws std::runtime_error when a CPU may not be used.
  explicit PinnedTeam(const CpuList& cpus) : mailbox_(xk_mailbox_create(kSpinUs, 0)) {
    if (mailbox_ == nullptr) throw std::bad_alloc();
    std::promise<std::string> ready;
    std::future<std::string> obstacle = ready.get_future();
    host_ = std::thread([this, &cpus, &ready] { host(cpus, &ready); });
    const std::string reason = obstacle.get();
    if (reason.empty()) return;
    end();
    throw std::runtime_error(reason);
  }

  PinnedTeam(const PinnedTeam&) = delete;
  PinnedTeam& operator=(const PinnedTeam&) = delete;

  // Finishes what was submitted.
  ~PinnedTeam() { end(); }

  // Hands in a task; its ticket. The queue is filled and posted to under one lock, so that it has
  // the order of the tickets.
  int64_t submit(std::function<void()> task) {
    const std::lock_guard<std::mutex> hold(lock_);
    tasks_.push_back(std::move(task));
    return xk_mailbox_post(mailbox_);
  }

  // Returns when that task is done.
  void wait(int64_t ticket) {
    while (xk_mailbox_await(mailbox_, ticket, -1) == XK_INTERRUPTED) {
    }
  }

 private:
  static constexpr int32_t kSpinUs = 50;

  void host(const CpuList& cpus, std::promise<std::string>* ready) {
    const CpuList before = cpus_of(0);
    const int32_t count = static_cast<int32_t>(cpus.size());
    xk_team_resize(count);
    const int32_t pinned = xk_team_pin(cpus.data(), count);
    if (pinned < 0) {
      const char* why = pinned == XK_REFUSED ? std::strerror(errno) : "not a set of CPUs";
      ready->set_value("cannot use CPUs " + text_of(cpus) + ": " + why);
      return;
    }
    ready->set_value("");
    for (int64_t done = 0;;) {
      const int64_t posted = xk_mailbox_next(mailbox_, done);
      if (posted == XK_INTERRUPTED) continue;
      if (posted == XK_CLOSED) break;
      for (; done < posted; ++done) take()();
    }
    // A runtime may give these workers to another team: they leave as they came.
    xk_team_confine(before.data(), static_cast<int32_t>(before.size()));
  }

  std::function<void()> take() {
    const std::lock_guard<std::mutex> hold(lock_);
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  void end() {
    xk_mailbox_close(mailbox_);
    host_.join();
    xk_mailbox_destroy(mailbox_);
  }

  xk_mailbox* mailbox_;
  std::mutex lock_;
  std::deque<std::function<void()>> tasks_;
  std::thread host_;
};

int64_t sum_of_squares(int64_t last) {
  int64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int64_t i = 1; i <= last; ++i) sum += i * i;
  return sum;
}

// Prints the calling thread's team and its CPUs; returns whether they are as requested.
bool report(const CpuList& asked) {
  std::vector<xk_team_member> members(asked.size());
  const int32_t size = xk_openmp_team(members.data(), static_cast<int32_t>(members.size()));
  std::printf("a team of %d\n", size);
  bool right = size == static_cast<int32_t>(asked.size());
  for (int32_t i = 0; i < size && right; ++i) {
    const CpuList cpus = cpus_of(members[static_cast<size_t>(i)].thread_id);
    std::printf("thread %d: CPUs %s\n", i, text_of(cpus).c_str());
    // The host thread keeps the whole set; each worker has one CPU.
    right = i == 0 ? cpus.size() == asked.size() : cpus == CpuList{asked[static_cast<size_t>(i)]};
  }
  return right;
}

int main(int count, char** words) {
  const CpuList own = cpus_of(0);
  bool right = true;
  try {
    CpuList cpus;
    for (int i = 1; i < count; ++i) cpus.push_back(std::stoi(words[i]));
    if (cpus.empty()) cpus = own;
    PinnedTeam team(cpus);
    team.wait(team.submit([&] { right = report(cpus); }));
    constexpr int64_t kTasks = 3;
    int64_t sums[kTasks] = {};
    int64_t ticket = 0;
    for (int64_t i = 0; i < kTasks; ++i) {
      ticket = team.submit([&sums, i] { sums[i] = sum_of_squares(1000 * (i + 1)); });
    }
    team.wait(ticket);  // and with the last one all before it are done
    for (int64_t i = 0; i < kTasks; ++i) {
      const int64_t n = 1000 * (i + 1);
      std::printf("1 + 4 + ... + %lld squared = %lld\n", static_cast<long long>(n),
                  static_cast<long long>(sums[i]));
      right = right && sums[i] == n * (n + 1) * (2 * n + 1) / 6;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pinned_team: %s\n", error.what());
    return 1;
  }
  right = right && cpus_of(0) == own;
  std::printf("the main thread: CPUs %s, as before\n", text_of(cpus_of(0)).c_str());
  return right ? 0 : 1;
}
