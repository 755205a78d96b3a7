// SPDX-License-Identifier: Apache-2.0
#include "tests/device/model/machine.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tests/device/model/fiber.hpp"
#include "tests/device/model/tensor_core.hpp"

namespace tegula::model {
namespace {

constexpr int kNamedBarriers = 16;

enum class Wait { kNothing, kWarp, kBarrier, kMbarrier, kWgmma, kEnded };

struct CopyAsync {
  unsigned destination;
  const void* source;
  int bytes, valid_bytes;
};

struct Fiber {
  Thread thread;  // first: `current` points here
  void* stack_pointer = nullptr;
  Wait wait = Wait::kNothing;
  int id = 0, threads = 0;           // kBarrier
  std::uint64_t generation = 0;      // kWarp, kBarrier
  unsigned barrier = 0, parity = 0;  // kMbarrier
  std::size_t wgmma_goal = 0;        // kWgmma: operations of the warpgroup that must be done
  WgmmaThread wgmma;
  std::vector<CopyAsync> copies;              // of the open group
  std::deque<std::vector<CopyAsync>> groups;  // committed
};

struct Warp {
  int live = 32, arrived = 0;
  std::uint64_t generation = 0;
  WarpWork work = nullptr;
  void* lanes[32] = {};
};

struct NamedBarrier {
  int arrived = 0, threads = 0;
  std::uint64_t generation = 0;
};

// In shared memory, in the 8 bytes of the kernel's barrier.
struct Mbarrier {
  std::int16_t count, pending;
  std::int32_t bytes : 31;  // still to come
  std::uint32_t phase : 1;
};
static_assert(sizeof(Mbarrier) == 8);

struct Random {
  std::uint64_t state;
  std::uint64_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
};

// When asynchronous instructions do their work: at once, or when nobody can go on without one. Then
// late copies show a wait that is missing, late products a stage that is released too early.
enum class Timing { kEager, kLateCopies, kLateProducts, kMixed };

class Machine {
 public:
  std::string run(void* kernels, const LaunchSize& size, void** parameters, ReadMap read_map,
                  std::uint64_t seed);

  void fail(const std::string& text) {
    if (error_.empty()) error_ = text;
    if (!in_fiber_) return;  // the scheduler looks at error_
    switch_fiber(&current_->stack_pointer, scheduler_);
  }

  void collective(WarpWork work, void* mine) {
    Fiber& self = *current_;
    Warp& warp = warps_[self.thread.thread.x / 32];
    if (warp.arrived > 0 && warp.work != work) fail("lanes of a warp at different instructions");
    warp.work = work;
    warp.lanes[self.thread.thread.x % 32] = mine;
    ++warp.arrived;
    self.generation = warp.generation;
    if (warp.arrived == warp.live) {
      complete(warp);
    } else {
      wait(Wait::kWarp);
    }
  }

  void barrier_arrive(int id, int threads) {
    if (id < 0 || id >= kNamedBarriers) return fail("a named barrier that does not exist");
    NamedBarrier& barrier = named_[id];
    if (barrier.arrived > 0 && barrier.threads != threads) {
      return fail("a named barrier with two numbers of threads");
    }
    barrier.threads = threads;
    ++barrier.arrived;
    complete_if_full(barrier);
  }
  void barrier_sync(int id, int threads) {
    current_->id = id;
    current_->generation = named_[id].generation;
    barrier_arrive(id, threads);
    if (named_[id].generation == current_->generation) wait(Wait::kBarrier);
  }

  Mbarrier* mbarrier(unsigned address) {
    if (address % 8 != 0) fail("a barrier at an address that is no multiple of 8");
    return reinterpret_cast<Mbarrier*>(shared(address, 8));
  }
  void mbarrier_init(unsigned address, int count) {
    const auto number = static_cast<std::int16_t>(count);
    *mbarrier(address) = {number, number, 0, 0};
  }
  void mbarrier_arrive(unsigned address, int expected_bytes) {
    Mbarrier& barrier = *mbarrier(address);
    if (barrier.count <= 0 || barrier.pending <= 0)
      return fail("one arrival too many at a barrier");
    barrier.bytes += expected_bytes;
    --barrier.pending;
    complete_if_full(barrier);
  }
  bool mbarrier_test(unsigned address, unsigned parity) {
    const Mbarrier& barrier = *mbarrier(address);
    if (barrier.count <= 0) fail("a wait at a barrier that was not initialised");
    return barrier.phase != parity;
  }
  void mbarrier_wait(unsigned address, unsigned parity) {
    if (mbarrier_test(address, parity)) return;
    current_->barrier = address;
    current_->parity = parity;
    wait(Wait::kMbarrier);
  }

  void tma_load(unsigned destination, const void* map, const int (&at)[4], unsigned barrier) {
    const TensorView view = read_map_(map);
    if (destination % 1024 != 0) return fail("TMA: a destination that is no multiple of 1,024");
    std::size_t bytes = static_cast<std::size_t>(view.element_size);
    for (const std::uint32_t extent : view.box) bytes *= extent;
    char* const to = shared(destination, bytes);
    const std::array<int, 4> place = {at[0], at[1], at[2], at[3]};
    pending_copies_.push_back([this, to, view, place, barrier, bytes] {
      const int box[4] = {place[0], place[1], place[2], place[3]};
      if (const char* const wrong = copy_box(to, view, box)) return fail(wrong);
      Mbarrier& full = *mbarrier(barrier);
      full.bytes -= static_cast<std::int32_t>(bytes);
      complete_if_full(full);
    });
    if (timing_ == Timing::kEager) run_copy(pending_copies_.size() - 1);
  }

  void cp_async(unsigned destination, const void* source, int bytes, int valid_bytes) {
    shared(destination, static_cast<std::size_t>(bytes));
    current_->copies.push_back({destination, source, bytes, valid_bytes});
    if (timing_ == Timing::kEager) do_copies(current_->copies);
  }
  void cp_async_commit() {
    current_->groups.push_back(std::move(current_->copies));
    current_->copies.clear();
  }
  void cp_async_wait(int outstanding) {
    while (current_->groups.size() > static_cast<std::size_t>(outstanding)) {
      do_copies(current_->groups.front());
      current_->groups.pop_front();
    }
  }

  void wgmma(const Wgmma& operation) {
    WarpgroupQueue& queue = queue_of(*current_);
    const char* const fault =
        queue.issue(current_->wgmma, operation, current_->thread.thread.x % 128);
    if (fault != nullptr) return fail(fault);
    if (timing_ == Timing::kEager) run_products(queue);
  }
  void wgmma_commit() { current_->wgmma.commit(); }
  void wgmma_wait(int outstanding) {
    current_->wgmma_goal = current_->wgmma.goal(outstanding);
    if (queue_of(*current_).done() < current_->wgmma_goal) wait(Wait::kWgmma);
    current_->wgmma.collect(current_->wgmma_goal);
  }

  void enter() {  // the first thing that a fiber does
    run_(parameters_);
    if (current_->wgmma.in_flight() || !current_->groups.empty() || !current_->copies.empty()) {
      fail("a thread ended before its asynchronous instructions");
    }
    Warp& warp = warps_[current_->thread.thread.x / 32];
    --warp.live;
    --live_;
    if (warp.live > 0 && warp.arrived == warp.live) complete(warp);
    if (named_[0].arrived > 0) complete_if_full(named_[0]);
    wait(Wait::kEnded);
  }

  static Machine* the_machine;

 private:
  char* shared(unsigned address, std::size_t bytes) {
    if (address < kSharedBase || address + bytes > kSharedBase + shared_bytes_) {
      fail("an address outside the block's shared memory");
    }
    return memory_ + (address - kSharedBase);
  }
  void wait(Wait what) {
    current_->wait = what;
    switch_fiber(&current_->stack_pointer, scheduler_);
  }
  void complete(Warp& warp) {
    warp.work(warp.lanes);
    std::memset(warp.lanes, 0, sizeof warp.lanes);
    warp.arrived = 0;
    ++warp.generation;
  }
  void complete_if_full(NamedBarrier& barrier) {
    const int threads = barrier.threads == 0 ? live_ : barrier.threads;
    if (barrier.arrived < threads) return;
    barrier.arrived = 0;
    ++barrier.generation;
  }
  void complete_if_full(Mbarrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    barrier.pending = barrier.count;
    barrier.phase ^= 1;
  }
  void do_copies(std::vector<CopyAsync>& copies) {
    for (const CopyAsync& copy : copies) {
      char* const to = shared(copy.destination, static_cast<std::size_t>(copy.bytes));
      std::memset(to, 0, static_cast<std::size_t>(copy.bytes));
      std::memcpy(to, copy.source, static_cast<std::size_t>(copy.valid_bytes));
    }
    copies.clear();
  }
  void run_copy(std::size_t i) {
    const std::function<void()> copy = std::move(pending_copies_[i]);
    pending_copies_.erase(pending_copies_.begin() + static_cast<std::ptrdiff_t>(i));
    copy();
  }
  WarpgroupQueue& queue_of(const Fiber& fiber) { return queues_[fiber.thread.thread.x / 128]; }
  bool run_products(WarpgroupQueue& queue) {
    return queue.run([this](unsigned address) -> const char* {
      return address < kSharedBase || address + 16 > kSharedBase + shared_bytes_
                 ? nullptr
                 : memory_ + (address - kSharedBase);
    });
  }
  // One asynchronous instruction does its work; false: there is none.
  bool advance() {
    const bool copy_first =
        timing_ == Timing::kLateProducts || (timing_ == Timing::kMixed && random_.below(2) == 0);
    return copy_first ? advance_copy() || advance_product() : advance_product() || advance_copy();
  }
  bool advance_copy() {
    if (pending_copies_.empty()) return false;
    run_copy(random_.below(pending_copies_.size()));
    return true;
  }
  bool advance_product() {
    const std::size_t first = random_.below(queues_.size());
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      if (run_products(queues_[(first + i) % queues_.size()])) return true;
    }
    return false;
  }
  bool ready(const Fiber& fiber) {
    switch (fiber.wait) {
      case Wait::kNothing: return true;
      case Wait::kWarp: return warps_[fiber.thread.thread.x / 32].generation != fiber.generation;
      case Wait::kBarrier: return named_[fiber.id].generation != fiber.generation;
      case Wait::kMbarrier: return mbarrier_test(fiber.barrier, fiber.parity);
      case Wait::kWgmma: return queues_[fiber.thread.thread.x / 128].done() >= fiber.wgmma_goal;
      case Wait::kEnded: return false;
    }
    return false;
  }
  void run_block(const LaunchSize& size, const Dim3& block);
  std::string deadlock();

  Fiber* current_ = nullptr;
  bool in_fiber_ = false;
  void* scheduler_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  std::vector<WarpgroupQueue> queues_;
  NamedBarrier named_[kNamedBarriers];
  std::vector<std::function<void()>> pending_copies_;
  int live_ = 0;
  char* memory_ = nullptr;
  std::size_t shared_bytes_ = 0;
  char* stacks_ = nullptr;
  Timing timing_ = Timing::kEager;
  Random random_{};
  ReadMap read_map_ = nullptr;
  void (*run_)(void** parameters) = nullptr;
  void** parameters_ = nullptr;
  std::string error_;
  Api api_{};
};

Machine* Machine::the_machine = nullptr;

std::string Machine::deadlock() {
  std::string text = "deadlock:";
  for (std::size_t i = 0; i < fibers_.size(); i += 32) {
    const Fiber& fiber = *fibers_[i];
    char line[96];
    const int warp = static_cast<int>(i / 32);
    switch (fiber.wait) {
      case Wait::kMbarrier:
        std::snprintf(line, sizeof line, " warp %d: mbarrier at %u, parity %u;", warp,
                      fiber.barrier - kSharedBase, fiber.parity);
        break;
      case Wait::kBarrier:
        std::snprintf(line, sizeof line, " warp %d: barrier %d;", warp, fiber.id);
        break;
      case Wait::kWgmma: std::snprintf(line, sizeof line, " warp %d: wgmma;", warp); break;
      case Wait::kWarp: std::snprintf(line, sizeof line, " warp %d: its other lanes;", warp); break;
      default: line[0] = '\0'; break;
    }
    text += line;
  }
  return text;
}

void Machine::run_block(const LaunchSize& size, const Dim3& block) {
  const std::size_t count = size.block.x;
  // 0xff: NaN in every type
  std::memset(memory_, 0xff, kSharedBytes);
  warps_.assign((count + 31) / 32, Warp{});
  queues_ = std::vector<WarpgroupQueue>((count + 127) / 128);
  for (NamedBarrier& barrier : named_) barrier = {};
  pending_copies_.clear();
  live_ = static_cast<int>(count);
  while (fibers_.size() < count) fibers_.push_back(std::make_unique<Fiber>());
  fibers_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    *fibers_[i] = Fiber{};
    fibers_[i]->thread = {{static_cast<unsigned>(i), 0, 0}, block, size.grid};
    fibers_[i]->stack_pointer =
        start_fiber(stacks_ + i * kStackBytes, [] { the_machine->enter(); });
  }
  while (live_ > 0) {
    bool moved = false;
    const std::size_t first = random_.below(count);
    for (std::size_t i = 0; i < count; ++i) {
      Fiber& fiber = *fibers_[(first + i) % count];
      if (!ready(fiber)) continue;
      moved = true;
      fiber.wait = Wait::kNothing;
      current_ = &fiber;
      in_fiber_ = true;
      switch_fiber(&scheduler_, fiber.stack_pointer);
      in_fiber_ = false;
      if (!error_.empty()) return;
    }
    if (timing_ == Timing::kMixed && random_.below(4) == 0) moved = advance() || moved;
    if (!moved && !advance()) {
      error_ = deadlock();
      return;
    }
    if (!error_.empty()) return;
  }
  if (!pending_copies_.empty()) error_ = "the block ended before a copy of its own";
}

std::string Machine::run(void* kernels, const LaunchSize& size, void** parameters, ReadMap read_map,
                         std::uint64_t seed) {
  const auto attach =
      reinterpret_cast<char* (*)(const Api*)>(dlsym(kernels, "tegula_model_attach"));
  run_ = reinterpret_cast<void (*)(void**)>(dlsym(kernels, "tegula_model_run"));
  if (attach == nullptr || run_ == nullptr) return "the library is no kernel of the model";
  if (size.block.y != 1 || size.block.z != 1 || size.block.x > 1024)
    return "a block of more than one dimension";
  the_machine = this;
  api_ = {
      reinterpret_cast<Thread* const*>(&current_),
      [](const char* text) { the_machine->fail(text); },
      [](WarpWork work, void* mine) { the_machine->collective(work, mine); },
      [](int id, int threads) { the_machine->barrier_sync(id, threads); },
      [](int id, int threads) { the_machine->barrier_arrive(id, threads); },
      [](unsigned barrier, int count) { the_machine->mbarrier_init(barrier, count); },
      [](unsigned barrier, int bytes) { the_machine->mbarrier_arrive(barrier, bytes); },
      [](unsigned barrier, unsigned parity) { return the_machine->mbarrier_test(barrier, parity); },
      [](unsigned barrier, unsigned parity) { the_machine->mbarrier_wait(barrier, parity); },
      [](unsigned destination, const void* map, const int(&at)[4], unsigned barrier) {
        the_machine->tma_load(destination, map, at, barrier);
      },
      [](unsigned destination, const void* source, int bytes, int valid_bytes) {
        the_machine->cp_async(destination, source, bytes, valid_bytes);
      },
      [] { the_machine->cp_async_commit(); },
      [](int outstanding) { the_machine->cp_async_wait(outstanding); },
      [](const Wgmma& operation) { the_machine->wgmma(operation); },
      [] { the_machine->wgmma_commit(); },
      [](int outstanding) { the_machine->wgmma_wait(outstanding); }};
  memory_ = attach(&api_);
  shared_bytes_ = size.shared_bytes;
  read_map_ = read_map;
  parameters_ = parameters;
  random_ = {seed * 2654435761u + 1};
  timing_ = static_cast<Timing>(seed % 4);
  error_.clear();
  if (stacks_ == nullptr) stacks_ = map_stacks(1024);
  if (stacks_ == nullptr) return "no memory for stacks";
  for (unsigned z = 0; z < size.grid.z; ++z) {
    for (unsigned y = 0; y < size.grid.y; ++y) {
      for (unsigned x = 0; x < size.grid.x; ++x) {
        run_block(size, {x, y, z});
        if (!error_.empty()) return "block " + std::to_string(x) + ": " + error_;
      }
    }
  }
  return "";
}

}  // namespace

std::string run_kernel(void* kernels, const LaunchSize& size, void** parameters, ReadMap read_map,
                       std::uint64_t seed) {
  static Machine machine;
  return machine.run(kernels, size, parameters, read_map, seed);
}

}  // namespace tegula::model
