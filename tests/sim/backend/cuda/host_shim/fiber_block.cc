// A fortified longjmp takes a jump to another stack for a fault.
#undef _FORTIFY_SOURCE

#include "tests/sim/backend/cuda/host_shim/fiber_block.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"

namespace simgrad::tests {
namespace {

// Private arrays of a thread lie on it; only touched pages cost memory.
constexpr size_t kStackBytes = size_t{1} << 20;
constexpr size_t kWarp = 32;

}  // namespace

// A fiber begins by setcontext, once. From then on it is left and entered by jumps: contexts would ask the
// kernel for the signal mask each time, which took three quarters of a test.
struct FiberBlock::Fiber {
  jmp_buf place;  // where it goes on, once it has begun
  void* stack = nullptr;
  bool begun = false;
  bool ended = false;
  // Where it waits, for whom, and with what.
  const char* file = "";
  int line = 0;
  int operation = kBlockBarrier;
  unsigned value = 0;
  unsigned answer = 0;
  bool ready = true;
};

struct FiberBlock::State {
  std::vector<Fiber> fibers;
  jmp_buf scheduler;
  const std::function<void(int)>* body = nullptr;
  int current = 0;
};

namespace {

// The block whose fiber runs on this host thread. A fiber may go on upon another one: nothing of this
// may be kept over a jump.
thread_local void* running = nullptr;
[[gnu::noinline]] void* Running() { return running; }

}  // namespace

FiberBlock::FiberBlock() : state_(std::make_unique<State>()) {}

FiberBlock::~FiberBlock() {
  for (Fiber& fiber : state_->fibers) munmap(fiber.stack, kStackBytes);
}

// Goes on with the scheduler until the fiber is entered again.
[[gnu::noinline]] void FiberBlock::Leave(State& state, Fiber& fiber) {
  if (_setjmp(fiber.place) == 0) _longjmp(state.scheduler, 1);
}

// Runs bodies, one for each time that the block runs.
void FiberBlock::Live() {
  while (true) {
    State& own = *static_cast<State*>(Running());
    const int thread = own.current;
    (*own.body)(thread);
    Fiber& fiber = own.fibers[static_cast<size_t>(thread)];
    fiber.ended = true;
    fiber.ready = false;
    Leave(own, fiber);
  }
}

// Returns when the fiber leaves.
[[gnu::noinline]] void FiberBlock::Enter(State& state, Fiber& fiber) {
  if (_setjmp(state.scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber.stack;
  start.uc_stack.ss_size = kStackBytes;
  start.uc_link = nullptr;
  makecontext(&start, &FiberBlock::Live, 0);
  setcontext(&start);
}

unsigned FiberBlock::Await(const char* file, int line, int operation, unsigned value) {
  State* const state = static_cast<State*>(Running());
  Fiber& fiber = state->fibers[static_cast<size_t>(state->current)];
  fiber.file = file;
  fiber.line = line;
  fiber.operation = operation;
  fiber.value = value;
  fiber.ready = false;
  Leave(*state, fiber);
  return fiber.answer;
}

// Answers the fibers [first, last), which have to wait at one place.
absl::Status FiberBlock::Meet(size_t first, size_t last) {
  const Fiber& one = state_->fibers[first];
  unsigned answer = one.value;
  for (size_t i = first; i < last; ++i) {
    const Fiber& fiber = state_->fibers[i];
    // One that has ended may have waited last in a text that is gone.
    const bool together = one.ended ? fiber.ended
                                    : !fiber.ended && fiber.operation == one.operation &&
                                          fiber.line == one.line &&
                                          std::strcmp(fiber.file, one.file) == 0;
    if (!together) {
      const auto where = [](const Fiber& f) {
        return f.ended ? "has ended" : absl::StrCat("waits in line ", f.line);
      };
      return absl::InternalError(absl::StrCat("threads of a block part at a barrier: thread ",
                                              first, " ", where(one), ", thread ", i, " ",
                                              where(fiber)));
    }
    if (i == first) continue;
    switch (one.operation) {
      case kWarpAdd:
        answer += fiber.value;
        break;
      case kWarpMin:
        answer = std::min(answer, fiber.value);
        break;
      case kWarpMax:
        answer = std::max(answer, fiber.value);
        break;
      default:
        answer |= fiber.value;
    }
  }
  for (size_t i = first; i < last; ++i) {
    state_->fibers[i].answer = answer;
    state_->fibers[i].ready = !one.ended;
  }
  return absl::OkStatus();
}

// Lets go on who can: the warps that wait for themselves, else the block.
absl::Status FiberBlock::MeetAll(size_t threads) {
  bool any = false;
  for (size_t first = 0; first < threads; first += kWarp) {
    const size_t last = std::min(threads, first + kWarp);
    const auto in_warp = [](const Fiber& f) { return !f.ended && f.operation != kBlockBarrier; };
    const auto begin = state_->fibers.begin();
    if (std::none_of(begin + static_cast<std::ptrdiff_t>(first),
                     begin + static_cast<std::ptrdiff_t>(last), in_warp)) {
      continue;
    }
    const absl::Status status = Meet(first, last);
    if (!status.ok()) return status;
    any = true;
  }
  return any ? absl::OkStatus() : Meet(0, threads);
}

absl::Status FiberBlock::Run(int threads, std::mt19937_64& order,
                             const std::function<void(int)>& resume,
                             const std::function<void(int)>& body) {
  State& state = *state_;
  const size_t n = static_cast<size_t>(threads);
  while (state.fibers.size() < n) {
    Fiber& fiber = state.fibers.emplace_back();
    fiber.stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber.stack == MAP_FAILED) return absl::InternalError("no memory for a fiber");
  }
  state.body = &body;
  running = &state;
  for (size_t i = 0; i < n; ++i) {
    Fiber& fiber = state.fibers[i];
    fiber.ended = false;
    fiber.ready = true;
  }
  std::vector<int> turns(n);
  std::iota(turns.begin(), turns.end(), 0);
  while (true) {
    std::shuffle(turns.begin(), turns.end(), order);
    for (int thread : turns) {
      Fiber& fiber = state.fibers[static_cast<size_t>(thread)];
      if (!fiber.ready) continue;
      state.current = thread;
      resume(thread);
      Enter(state, fiber);
    }
    const absl::Status status = MeetAll(n);
    if (!status.ok()) {
      for (Fiber& fiber : state.fibers) fiber.begun = false;  // those that wait never go on
      return status;
    }
    if (state.fibers.front().ended) return absl::OkStatus();  // all have: they met
  }
}

}  // namespace simgrad::tests
