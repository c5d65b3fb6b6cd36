// The state of a thread that runs an instance: its records, the tape, the health.
//
// A text derives its Instance from this and adds the fields that travel. The functions of a plan are
// functions of an Instance; the kernels around them stand in kernels.h.
// Mappings: a thread per instance; or a block per instance, where every thread has an Instance that
//   holds the same scalars, arrays are shared, and thread 0 `speaks` for all.
// Errors: none. Threads: an Instance is one thread's. Functions that wait for the block say so.
#pragma once

#include "precision/exact_sum.h"
#include "sim/backend/cuda/device/diagnostics.h"
#include "sim/backend/cuda/device/input.h"
#include "sim/backend/cuda/device/join.h"
#include "sim/backend/cuda/device/tape.h"

namespace simgrad::sim::cuda::device {

// A number as the tape keeps it: its bits.
SIMGRAD_HD inline uint32_t TapedBits(float x) { return BitsOf(x); }
SIMGRAD_HD inline uint64_t TapedBits(double x) { return BitsOf(x); }
SIMGRAD_HD inline uint32_t TapedBits(int32_t x) { return static_cast<uint32_t>(x); }
SIMGRAD_HD inline uint64_t TapedBits(int64_t x) { return static_cast<uint64_t>(x); }
SIMGRAD_HD inline uint32_t TapedBits(uint32_t x) { return x; }
SIMGRAD_HD inline uint32_t TapedBits(bool x) { return x ? 1 : 0; }
SIMGRAD_HD inline void FromTapedBits(uint32_t bits, float& x) { x = precision::FloatOf(bits); }
SIMGRAD_HD inline void FromTapedBits(uint64_t bits, double& x) { x = precision::DoubleOf(bits); }
SIMGRAD_HD inline void FromTapedBits(uint32_t bits, int32_t& x) { x = static_cast<int32_t>(bits); }
SIMGRAD_HD inline void FromTapedBits(uint64_t bits, int64_t& x) { x = static_cast<int64_t>(bits); }
SIMGRAD_HD inline void FromTapedBits(uint32_t bits, uint32_t& x) { x = bits; }
SIMGRAD_HD inline void FromTapedBits(uint32_t bits, bool& x) { x = bits != 0; }

// The memory that threads of a block share. kWindow: the steps that are recorded at once.
template <int kTerminations, int kEvents, int kStates, int kWindow>
struct BlockShared {
  BackwardColumn backward[2];
  precision::ExactSum exact_sum;
  double exact_result;
  unsigned long long tape_top;
  // Kernels that do not record are launched without what follows.
  StepSlot<kTerminations, kEvents, kStates> slots[kWindow];
  // PlaceHash of a loop, or an event behind them, that decides once in a step.
  uint64_t place[kWindow][kTerminations + kEvents > 0 ? kTerminations + kEvents : 1];
};

// Units behind the frames of a step: the place of the link before, that of the frame.
inline constexpr uint32_t kLinkUnits = 2;

SIMGRAD_HD constexpr int AtLeastOne(int n) { return n > 0 ? n : 1; }

template <bool kBlockPerInstance, bool kStopsAtNonFinite, bool kTellsInstances,
          int kTerminationSites, int kEventSites, int kRealStates, int kAdditionSites,
          int kRecordedSteps>
struct InstanceBase {
  static constexpr bool kBlock = kBlockPerInstance;
  static constexpr bool kStops = kStopsAtNonFinite;
  static constexpr bool kTells = kTellsInstances;
  static constexpr int kTerminations = kTerminationSites;
  static constexpr int kEvents = kEventSites;
  static constexpr int kStates = kRealStates;
  static constexpr int kAdditions = kAdditionSites;
  static constexpr int kWindow = kRecordedSteps;
  using Shared = BlockShared<kTerminations, kEvents, kStates, kWindow>;

  const KernelArgs& args;
  Shared& shared;
  unsigned char* work;  // workspace of the block
  const bool speaks;
  // Arguments that a step needs; those in `args` are read anew after each store.
  const bool writes_trajectories;
  const double near_band_ulps;
  Tape<TapeUnit> tape;

  bool live = false;  // this thread has an instance
  int64_t instance = 0;
  int64_t t = 0;          // the step
  int64_t read_time = 0;  // the step whose inputs are read
  uint32_t rank = 0;
  int64_t health = -1;
  bool bad = false, bad_input = false;
  bool sampled = false;                   // additions are counted in this step
  MarginColumn* event_margins = nullptr;  // [event], of this step; null: not counted

  // Tallies of a step.
  TerminationTally loop[AtLeastOne(kTerminations)];
  RunTally run[AtLeastOne(kTerminations)];
  EventTally event[AtLeastOne(kEvents)];
  StepSlot<kTerminations, kEvents, kStates>* slot = nullptr;
  const uint64_t* place = nullptr;  // of the step: BlockShared::place
  BackwardColumn* backward = nullptr;
  // Tallies of a launch.
  InstanceTally told[kTells ? AtLeastOne(kTerminations) : 1];
  int64_t first_event[AtLeastOne(kEvents)];
  uint64_t signature = 0;
  RangeTally range[kRoles];
  AdditionTally addition[AtLeastOne(kAdditions)];
  unsigned long long health_changes = 0;

  __device__ InstanceBase(const KernelArgs& given, Shared& of_block, unsigned char* workspace)
      : args(given),
        shared(of_block),
        work(workspace),
        speaks(!kBlock || threadIdx.x == 0),
        writes_trajectories(given.state_trajectory != nullptr ||
                            given.export_trajectory != nullptr),
        near_band_ulps(given.near_band_ulps),
        tape(given.tape, kBlock ? 0 : OwnLane(), kBlock ? 1 : LaneCount(),
             kBlock ? static_cast<int64_t>(blockIdx.x) * given.tape_capacity : 0) {}

  __device__ static int64_t OwnLane() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  }
  __device__ static int64_t LaneCount() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

  // The elements of an array that are this thread's.
  __device__ static int64_t First() { return kBlock ? threadIdx.x : 0; }
  __device__ static int64_t Stride() { return kBlock ? blockDim.x : 1; }
  // The threads of a block wait for each other, where they run an instance together.
  __device__ static void Sync() {
    if constexpr (kBlock) __syncthreads();
  }

  // ---- health ----

  __device__ bool Runs() const { return live && (health < 0 || (health & 1) == 0); }

  // Whether any thread of the instance saw something; waits.
  __device__ static bool Any(bool flag) {
    if constexpr (kBlock) return __syncthreads_or(flag) != 0;
    return flag;
  }

  // Behind what is computed of a step: whether its results count. Waits.
  __device__ bool Commits() {
    bad = Any(bad);
    bad_input = Any(bad_input);
    if (health < 0 && (bad || bad_input)) {
      health = (t << 8) | (bad_input ? 0 : 2);
      if (speaks) ++health_changes;
    }
    if constexpr (kStops) {
      if (health >= 0) {
        health |= 1;
        if (speaks) ++health_changes;
      }
      return health < 0;
    }
    return true;
  }

  // Behind a reversed step; waits.
  __device__ void JudgeReversed() {
    bad = Any(bad);
    if (health < 0 && bad) health = (t << 8) | 4;
  }

  // Whether some number of an input is not finite.
  __device__ void CheckInput(int input, int64_t count) {
    for (int64_t e = First(); e < count; e += Stride()) {
      bad_input |= !precision::IsFinite(ReadReal(args.input[input], instance, read_time, e));
    }
  }

  // ---- what is recorded ----

  __device__ void BeginStep() {
    for (int k = 0; k < kTerminations; ++k) loop[k] = {};
    for (int k = 0; k < kTerminations; ++k) run[k] = {};
    for (int k = 0; k < kEvents; ++k) event[k] = {};
  }

  __device__ void Test(int site, const Distance& distance, bool ends, int32_t test = 0) {
    run[site].Test(loop[site], distance, ends, near_band_ulps, static_cast<uint32_t>(test));
  }
  __device__ void TellTested(int site, double value) {
    if constexpr (kTells) device::TellTested(args, site, told[site], value);
  }
  // PlaceHash of a decision of this step: of the loop or event that decides once in it, ...
  __device__ uint64_t LoopPlace(int site) const { return place[site]; }
  __device__ uint64_t EventPlace(int site) const { return place[kTerminations + site]; }
  // ... or of any other.
  __device__ uint64_t PlaceOf(uint64_t hash, int64_t iteration, int64_t element) const {
    return precision::PlaceHash(hash, static_cast<uint64_t>(t), static_cast<uint64_t>(iteration),
                                static_cast<uint64_t>(element));
  }
  __device__ void EndRun(int site, uint64_t place_hash, int32_t iterations, int32_t reason,
                         double tested) {
    device::EndRun(loop[site], slot->termination[site], run[site], iterations, reason, tested);
    run[site] = {};
    signature += precision::OutcomeHash(
        place_hash,
        precision::LoopOutcome(static_cast<uint64_t>(iterations), static_cast<uint64_t>(reason)));
    if constexpr (kTells) told[site].EndRun(iterations, reason);
  }
  template <class Value>
  __device__ void Decide(int site, uint64_t place_hash, bool guard, const Distance& distance,
                         Value value, Value& last) {
    DecideEvent(event[site], place_hash, t, guard, distance, value, last, first_event[site],
                signature);
    if (event_margins != nullptr && guard && distance.number) {
      atomicAdd(&event_margins[site].histogram[MarginBucket(distance.ulps)], 1u);
    }
  }
  // x became r in F, `times` times.
  template <Format F, class From>
  __device__ void CountRange(int role, From x, typename precision::Lane<F>::Carrier r,
                             uint64_t times) {
    RangeTally one;
    device::CountRange<F>(one, x, r);
    range[role].underflows += times * one.underflows;
    range[role].overflows += times * one.overflows;
  }
  template <Format F>
  __device__ void CountStore(int role, typename precision::Lane<F>::Carrier x) {
    device::CountStore<F>(range[role], x);
  }
  template <class T>
  __device__ void CountAddition(int site, T x, T y, T stored, uint64_t times) {
    if (sampled) device::CountAddition(addition[site], x, y, stored, times);
  }
  // A cotangent leaves the step: where it is tiny it has underflowed.
  template <Format F>
  __device__ void Take(int role, double cotangent, bool present) {
    if (!present) return;
    Join(*backward, cotangent);
    range[role].underflows += cotangent != 0 && IsTiny<F>(cotangent) ? 1 : 0;
  }
  __device__ void FlushRanges() {
    if (args.ranges == nullptr) return;
    for (int role = 0; role < kRoles; ++role) Join(*args.ranges, role, range[role]);
    if (args.additions == nullptr) return;
    for (int site = 0; site < kAdditions; ++site) Join(args.additions[site], addition[site]);
  }

  // ---- the tape; places are counted in its units ----

  __device__ int64_t Push(uint32_t units) { return tape.Take(units); }
  // By one thread, while others push too.
  __device__ int64_t PushInTurn(uint32_t units) {
    return static_cast<int64_t>(
        atomicAdd(&shared.tape_top, static_cast<unsigned long long>(units)));
  }
  // Around a loop whose turns push; both wait.
  __device__ void OpenTurns() {
    __syncthreads();
    if (threadIdx.x == 0) shared.tape_top = tape.top;
    __syncthreads();
  }
  __device__ void CloseTurns() {
    __syncthreads();
    tape.top = shared.tape_top;
  }
  template <class T>
  __device__ void Keep(int64_t place, int64_t element, T x) {
    tape.Store(static_cast<uint32_t>(place), element, TapedBits(x));
  }
  template <class T>
  __device__ T Recall(int64_t place, int64_t element) const {
    T x = 0;
    using Bits = decltype(TapedBits(x));
    FromTapedBits(tape.template Load<Bits>(static_cast<uint32_t>(place), element), x);
    return x;
  }
};

}  // namespace simgrad::sim::cuda::device
