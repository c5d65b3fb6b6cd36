// The kernels of a text: loops over instances and steps around the functions of its plan.
//
// `I` is the text's Instance (instance.h) with its fields and
//   Open()                    what is read once, and where its arrays lie
//   Load(), Store()           what travels, from and to memory
//   Clear()                   exports, cost, events as before step 0
//   SetSent()                 the states as they were sent
//   CheckSent(), CheckStep()  whether inputs are finite
//   Sample()                  ranges of the states, to the slot of the step
//   Places(to, t)             the hashes of its sites at step t
//   WriteTrajectories(column)
// and, where it has an adjoint, LoadReversed(), LoadReversedHealth(), StoreReversed() of cotangents and
// gradients, OpenEntry(), CloseEntry() around what gives to weights, and CopyStates(), after which what
// becomes of the states travels no more. RunStart(I&), RunStep(I&) and so on are the functions of the
// plan.
// Threads: all of a block call a kernel alike. What a function of the plan leaves is seen by all threads
//   behind the next barrier: each function ends with one (I::Any) or is followed by one.
#pragma once

#include "sim/backend/cuda/device/instance.h"

namespace simgrad::sim::cuda::device {

// body(first_pass) for every instance of this thread, or block.
template <class I, class Body>
__device__ inline void EachInstance(I& self, const Body& body) {
  const int64_t instances = self.args.instances;
  const int64_t stride = I::kBlock ? static_cast<int64_t>(gridDim.x) : I::LaneCount();
  const int64_t begin =
      I::kBlock ? static_cast<int64_t>(blockIdx.x) : static_cast<int64_t>(blockIdx.x) * blockDim.x;
  for (int64_t pass = begin; pass < instances; pass += stride) {
    const int64_t own = I::kBlock ? pass : pass + threadIdx.x;
    self.live = own < instances;
    self.instance = self.live ? own : instances - 1;
    self.rank = self.args.rank[self.instance];
    self.bad = self.bad_input = false;
    body(pass == begin);
  }
}

template <class I>
__device__ inline void StartKernel(I& self) {
  EachInstance(self, [&](bool) {
    self.t = self.read_time = 0;
    self.Open();
    self.SetSent();
    self.CheckSent();
    I::Sync();
    RunStart(self);
    self.bad = I::Any(self.bad);
    self.bad_input = I::Any(self.bad_input);
    self.health = self.bad_input ? 0 : (self.bad ? 2 : -1);
    self.Clear();
    if (self.live) self.Store();
  });
}

// Tells which of the steps [first_step, first_step + count) are sampled: every stride-th, and the last.
struct Samples {
  int64_t stride, steps;
  int64_t until = 0;  // steps before the next multiple of the stride

  __device__ explicit Samples(const KernelArgs& args) : stride(args.stride), steps(args.steps) {}
  // How many of [first, t) are sampled, where t is no more than the last step.
  __device__ int64_t Before(int64_t first, int64_t t) const {
    return stride > 0 ? t / stride - first / stride : 0;
  }
  __device__ void Begin(int64_t t) { until = stride > 0 ? stride - 1 - t % stride : -1; }
  __device__ bool Has(int64_t t) const { return until == 0 || t + 1 == steps; }
  __device__ void Next() { until = until == 0 ? stride - 1 : until - 1; }
};

// Joins the observations of a warp in a step to those of its block.
template <class I>
__device__ inline void JoinStep(I& self) {
  auto& slot = *self.slot;
  for (int k = 0; k < I::kTerminations; ++k)
    Join(slot.lock[0], slot.termination[k], self.loop[k], self.rank);
  for (int k = 0; k < I::kEvents; ++k) Join(slot.lock[0], slot.event[k], self.event[k], self.rank);
  if (self.sampled) self.Sample();
}

// The slots of steps [begin, end) of the launch become columns. Between barriers.
template <class I>
__device__ inline void LeaveWindow(I& self, int64_t begin, int64_t end) {
  const int64_t first = self.args.first_step;
  Samples samples(self.args);
  samples.Begin(first + begin);
  int64_t sample = samples.Before(first, first + begin);
  for (int64_t column = begin; column < end; ++column) {
    const bool sampled = samples.Has(first + column);
    self.shared.slots[column - begin].Leave(self.args, column, sampled ? sample : -1);
    sample += sampled ? 1 : 0;
    samples.Next();
  }
}

template <class I, bool kRecords>
__device__ inline void ForwardKernel(I& self) {
  const KernelArgs& args = self.args;
  const bool records = kRecords && (args.flags & kRecordSteps) != 0;
  const bool writes = (args.flags & kValuesPass) == 0;
  const int64_t first = args.first_step;
  const int32_t count = static_cast<int32_t>(args.count);
  unsigned long long* const tape_units = args.tape_units;
  // The second pass of level `instances` records nothing: it has one slot, which nobody reads.
  if constexpr (kRecords) {
    for (int k = 0; k < (records ? I::kWindow : 1); ++k) self.shared.slots[k].Clear();
  }
  // All instances of the block go through a window of steps before the next one.
  const int32_t window = records ? int32_t{I::kWindow} : count;
  for (int32_t begin = 0; begin < count; begin += window) {
    const int32_t end = count - begin > window ? begin + window : count;
    if constexpr (kRecords) {
      for (int32_t k = static_cast<int32_t>(threadIdx.x); k < (records ? end - begin : 1);
           k += static_cast<int32_t>(blockDim.x)) {
        self.Places(self.shared.place[k], static_cast<uint64_t>(first + begin + k));
      }
      __syncthreads();
    }
    EachInstance(self, [&](bool) {
      self.Load();
      const int told = I::kTells && self.speaks && self.live ? I::kTerminations : 0;
      for (int k = 0; k < told; ++k) StartTelling(args, k, self.instance, self.told[k]);
      Samples samples(args);
      samples.Begin(first + begin);
      int64_t sample = samples.Before(first, first + begin);
      for (int32_t column = begin; column < end; ++column) {
        self.t = self.read_time = first + column;
        if constexpr (kRecords) {
          const int32_t in_window = records ? column - begin : 0;
          self.slot = &self.shared.slots[in_window];
          self.place = self.shared.place[in_window];
          self.sampled = samples.Has(self.t);
          self.event_margins = records && self.sampled && args.event_margins != nullptr
                                   ? args.event_margins + sample * I::kEvents
                                   : nullptr;
          self.BeginStep();
        }
        unsigned long long units = 0;
        self.tape.top = 0;
        if (self.Runs()) {
          self.bad = self.bad_input = false;
          if (self.t > 0) self.CheckStep();
          RunStep(self);
          units = self.tape.top + kLinkUnits;
        }
        I::Sync();
        if (writes) self.WriteTrajectories(column);
        for (int k = 0; k < told; ++k) TellStep(args, k, column, self.instance, self.told[k]);
        if (tape_units != nullptr) RaiseTapeUnits(&tape_units[self.t], units);
        if constexpr (kRecords) {
          if (records) JoinStep(self);
          sample += self.sampled ? 1 : 0;
          samples.Next();
        }
      }
      if (self.live) self.Store();
    });
    if constexpr (kRecords) {
      if (records) {
        __syncthreads();
        LeaveWindow(self, begin, end);
      }
    }
  }
  if (!kRecords) return;
  self.FlushRanges();
  if (records && self.health_changes != 0) {
    atomicAdd(&args.ranges->health_changes, self.health_changes);
  }
}

template <class I>
__device__ inline void FinishKernel(I& self) {
  EachInstance(self, [&](bool) {
    self.Load();
    self.t = self.args.steps;
    self.read_time = self.t > 0 ? self.t - 1 : 0;
    if (I::kStops && self.health >= 0) self.health |= 1;  // of a run without steps, too
    if (self.Runs()) RunFinish(self);
    if (self.live) self.Store();
  });
}

// Columns of blocks to columns of steps, one block of threads a step.
template <class I>
__device__ inline void MergeKernel(const KernelArgs& args) {
  MergeBlocks(args.termination, args.termination_partial, args.blocks, args.count,
              I::kTerminations);
  MergeBlocks(args.event, args.event_partial, args.blocks, args.count, I::kEvents);
  MergeBlocks(args.state, args.state_partial, args.blocks, args.samples, I::kStates);
  MergeBlocks(args.backward, args.backward_partial, args.blocks, args.count, 1);
}

// The adjoint of the terminal cost, and the cotangents sent for z[steps].
template <class I>
__device__ inline void StartAdjointKernel(I& self) {
  EachInstance(self, [&](bool) {
    self.Load();
    self.LoadReversed();
    self.t = self.args.steps;
    self.read_time = self.t > 0 ? self.t - 1 : 0;
    self.tape.top = 0;
    if (self.Runs()) {
      self.OpenEntry();
      RunReverseTerminal(self);
      self.JudgeReversed();
      self.CloseEntry();
    }
    if (self.live) self.StoreReversed();
  });
  self.FlushRanges();
}

// Hands the column of a reversed step over to the partials of the block.
template <class I>
__device__ inline void LeaveColumn(I& self, int64_t column, bool first_pass) {
  const KernelArgs& args = self.args;
  if (args.backward_partial != nullptr) {
    BackwardColumn* const partial =
        args.backward_partial + static_cast<int64_t>(blockIdx.x) * args.count + column;
    if (first_pass) {
      OnColumns(partial, self.backward, 1, CopyWord{});
    } else {
      OnColumns(partial, self.backward, 1, MergeWord{});
    }
  }
  OnColumns(self.backward, self.backward, 1, ClearWord{});
}

// The steps of the range once more, with a tape; gives the place of the last step's link.
template <class I>
__device__ inline int64_t Replay(I& self) {
  const KernelArgs& args = self.args;
  int64_t link = 0;
  self.tape.top = 0;
  self.CopyStates();
  for (self.t = args.first_step; self.t < args.first_step + args.count; ++self.t) {
    self.read_time = self.t;
    I::Sync();
    const int64_t frame = RunReplay(self);
    const int64_t next = self.Push(kLinkUnits);
    if (self.speaks) {
      self.Keep(next, 0, static_cast<int32_t>(link));
      self.Keep(next, 1, static_cast<int32_t>(frame));
    }
    link = next;
  }
  return link;
}

template <class I>
__device__ inline void ReverseStep(I& self, int64_t frame) {
  if constexpr (I::kHasLast) {
    if (self.t == self.args.steps - 1) return RunReverseLast(self, frame);
  }
  RunReverse(self, frame);
}

// Steps [first_step, first_step + count): once more with a tape, then in reverse.
template <class I>
__device__ inline void AdjointKernel(I& self) {
  const KernelArgs& args = self.args;
  OnColumns(self.shared.backward, self.shared.backward, 2, ClearWord{});
  __syncthreads();
  EachInstance(self, [&](bool first_pass) {
    self.Load();
    self.LoadReversed();
    self.LoadReversedHealth();
    int64_t link = self.Runs() ? Replay(self) : 0;
    I::Sync();
    for (int64_t column = args.count - 1; column >= 0; --column) {
      self.t = self.read_time = args.first_step + column;
      self.backward = &self.shared.backward[column & 1];
      if (self.Runs()) {
        self.bad = false;
        const int64_t frame = static_cast<uint32_t>(self.template Recall<int32_t>(link, 1));
        link = static_cast<uint32_t>(self.template Recall<int32_t>(link, 0));
        self.OpenEntry();
        ReverseStep(self, frame);
        self.JudgeReversed();
        self.CloseEntry();
      }
      __syncthreads();
      LeaveColumn(self, column, first_pass);
    }
    if (self.live) self.StoreReversed();
    __syncthreads();
  });
  self.FlushRanges();
}

// The adjoint of z[0]: gradients of what was sent.
template <class I>
__device__ inline void FinishAdjointKernel(I& self) {
  EachInstance(self, [&](bool) {
    self.Load();
    self.LoadReversed();
    self.LoadReversedHealth();
    self.CopyStates();
    self.t = self.read_time = 0;
    self.tape.top = 0;
    if (self.Runs()) {
      self.SetSent();
      I::Sync();
      self.OpenEntry();
      RunReverseInitial(self);
      self.JudgeReversed();
      self.CloseEntry();
    }
    if (self.live) self.StoreReversed();
  });
}

}  // namespace simgrad::sim::cuda::device
