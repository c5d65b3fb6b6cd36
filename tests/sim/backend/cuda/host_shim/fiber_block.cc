#include "tests/sim/backend/cuda/host_shim/fiber_block.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"

namespace simgrad::tests {
namespace {

// Private arrays of a thread lie on it; only touched pages cost memory.
constexpr size_t kStackBytes = size_t{1} << 20;

}  // namespace

struct FiberBlock::Fiber {
  ucontext_t context;
  void* stack = nullptr;
  bool ended = false;
  // Where it waits.
  const char* file = "";
  int line = 0;
  int value = 0;
};

struct FiberBlock::State {
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  const std::function<void(int)>* body = nullptr;
  int current = 0;
  int together = 0;  // or of the values of the last barrier
};

namespace {

// The block whose fiber runs on this host thread.
thread_local void* running = nullptr;

}  // namespace

FiberBlock::FiberBlock() : state_(std::make_unique<State>()) {}

FiberBlock::~FiberBlock() {
  for (Fiber& fiber : state_->fibers) munmap(fiber.stack, kStackBytes);
}

int FiberBlock::Barrier(const char* file, int line, int value) {
  State* const state = static_cast<State*>(running);
  Fiber& fiber = state->fibers[static_cast<size_t>(state->current)];
  fiber.file = file;
  fiber.line = line;
  fiber.value = value;
  swapcontext(&fiber.context, &state->scheduler);
  return state->together;
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
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &state.scheduler;
    makecontext(
        &fiber.context,
        +[] {
          State* const own = static_cast<State*>(running);
          const size_t index = static_cast<size_t>(own->current);
          (*own->body)(own->current);
          own->fibers[index].ended = true;
        },
        0);
  }
  std::vector<int> turns(n);
  std::iota(turns.begin(), turns.end(), 0);
  while (true) {
    std::shuffle(turns.begin(), turns.end(), order);
    size_t ended = 0;
    for (int thread : turns) {
      state.current = thread;
      resume(thread);
      Fiber& fiber = state.fibers[static_cast<size_t>(thread)];
      swapcontext(&state.scheduler, &fiber.context);
      ended += fiber.ended ? 1 : 0;
    }
    if (ended == n) return absl::OkStatus();
    const Fiber& first = state.fibers.front();
    state.together = 0;
    for (size_t i = 0; i < n; ++i) {
      const Fiber& fiber = state.fibers[i];
      if (fiber.ended || fiber.line != first.line || std::strcmp(fiber.file, first.file) != 0) {
        return absl::InternalError(absl::StrCat(
            "threads of a block part at a barrier: thread 0 ",
            first.ended ? "has ended" : absl::StrCat("waits in line ", first.line), ", thread ", i,
            " ", fiber.ended ? "has ended" : absl::StrCat("waits in line ", fiber.line)));
      }
      state.together |= fiber.value;
    }
  }
}

}  // namespace simgrad::tests
