// The reverse of a CudaRun: tapes, launches, gradients.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "precision/rounding.h"
#include "precision/selection.h"
#include "sim/backend/cuda/run/cuda_counts.h"
#include "sim/backend/cuda/run/cuda_run.h"
#include "sim/backend/step_columns.h"

namespace simgrad::sim::cuda {
namespace {

// Positions on a tape are 32 bits wide (device/tape.h).
constexpr int64_t kLongestTape = int64_t{1} << 32;
constexpr int64_t kMoreThanAnyBudget = std::numeric_limits<int64_t>::max() / 2;

absl::Status TooLong(const std::string& what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the record of ", what, " of one instance is longer than 2^32 units of ",
                   kTapeUnitBytes, " bytes; a smaller max_iter would need less"));
}

}  // namespace

std::shared_ptr<const ForwardCounts> CudaRun::Counts() const {
  if (!batch_.program->adjoint || !failed_.ok()) return nullptr;
  const absl::Status moved = saved_.KeepOnHost();
  if (!absl::IsResourceExhausted(moved)) failed_.Update(moved);
  failed_.Update(copies_->Wait());  // other runs read it on streams of their own
  if (!moved.ok() || !failed_.ok()) return nullptr;
  return std::make_shared<CudaCounts>(device_, batch_.program, *source_, units_);
}

// The most tape that one instance needs; nullopt if positions on such a tape would overflow.
std::optional<int64_t> CudaRun::TapeUnits(int64_t first, int64_t count) const {
  uint64_t units = 0;
  for (int64_t t = first; t < first + count; ++t) {
    units += units_[static_cast<size_t>(t)];
    if (units > static_cast<uint64_t>(kLongestTape)) return std::nullopt;
  }
  return static_cast<int64_t>(units);
}

// Every instance that is resident at once has a tape.
int64_t CudaRun::TapeBytes(int64_t grid, int64_t units) const {
  const int64_t resident = source_->mapping == Mapping::kThreadPerInstance ? grid * block_ : grid;
  return resident * units * kTapeUnitBytes;
}

// The tape's memory is that of the longest: of the range, the terminal cost or `initial`. StartAdjoint
// refuses the last two where no tape can hold them.
int64_t CudaRun::AdjointBytes(int64_t first, int64_t count) const {
  const std::optional<int64_t> of_range = TapeUnits(first, count);
  if (!of_range) return kMoreThanAnyBudget;
  int64_t units = *of_range;
  for (int64_t other : {source_->terminal_tape_units, source_->initial_tape_units}) {
    if (other <= kLongestTape) units = std::max(units, other);
  }
  const int64_t columns = adjoint_grid_ * count * static_cast<int64_t>(sizeof(BackwardColumn));
  return TakenBytes(TapeBytes(adjoint_grid_, units)) + columns +
         TakenBytes(weight_sums_.WindowBytes(count)) + weight_sums_.TotalBytes();
}

// Memory of the device, or of the host: slower, over the bus, but there.
absl::StatusOr<void*> CudaRun::RecordMemory(Scratch& scratch, int64_t bytes) {
  const int64_t room = launch_options_.record_bytes.value_or(device_->limits().memory_bytes / 2);
  absl::StatusOr<void*> memory = absl::ResourceExhaustedError("");
  if (bytes <= room) memory = scratch.Of(*device_, *stream_, bytes);
  if (!absl::IsResourceExhausted(memory.status())) return memory;
  return scratch.Of(*device_, *stream_, bytes, MemoryKind::kPinned);
}

absl::Status CudaRun::GiveTape(int64_t grid, int64_t units, KernelArgs& args) {
  args.tape_units = nullptr;  // counted in the forward run
  args.tape_capacity = units;
  const absl::StatusOr<void*> tape = RecordMemory(tape_, TapeBytes(grid, units));
  if (!tape.ok()) return tape.status();
  args.tape = *tape;
  return absl::OkStatus();
}

absl::Status CudaRun::GiveWindows(int64_t first, int64_t entries, KernelArgs& args) {
  if (weight_sums_.inputs() == 0) return absl::OkStatus();
  const absl::StatusOr<void*> memory = RecordMemory(windows_, weight_sums_.WindowBytes(entries));
  if (!memory.ok()) return memory.status();
  return weight_sums_.Open(*memory, first, entries, args);
}

absl::Status CudaRun::SumWindows(KernelArgs& args) {
  const auto launch = [&](const std::string& entry, int64_t threads) {
    if (threads == 0) return absl::OkStatus();
    const absl::StatusOr<int64_t> grid = GridOf(entry, (threads + block_ - 1) / block_, 0);
    return grid.ok() ? Launch(entry, {*grid, block_, 0}, args) : grid.status();
  };
  absl::Status status;
  for (size_t k = 0; k < weight_sums_.inputs() && status.ok(); ++k) {
    args.sums = weight_sums_.View(k, args);
    const int64_t totals = args.sums.blocks * args.sums.elements;
    status = launch("simgrad_adjoint_sums", args.sums.entries * totals);
    if (status.ok()) status = launch("simgrad_adjoint_totals", totals);
  }
  return status;
}

absl::Status CudaRun::StartAdjoint(double seed_scale, const InstanceWeights& over) {
  if (!failed_.ok()) return failed_;
  const NumericalProgram& program = *batch_.program;
  if (!program.adjoint) return absl::FailedPreconditionError("the program has no adjoint");
  stale_ = true;
  reversing_ = true;
  absl::StatusOr<Buffer> fields = device_->Allocate(layout_.adjoint_bytes);
  if (!fields.ok()) return fields.status();
  if (absl::Status status = stream_->Wait(); !status.ok()) return status;
  adjoint_fields_ = std::move(*fields);
  absl::Status status = stream_->Fill(adjoint_fields_.data(), 0, adjoint_fields_.bytes());
  PointFields(travelling_.data(), adjoint_fields_.data(), args_);
  if (status.ok()) status = uploaded_.UploadCotangents(batch_, args_);
  if (status.ok()) status = weight_sums_.Start(batch_, over, seed_scale);
  if (!status.ok()) return status;
  args_.seed = precision::RoundTo(program.policy[Role::kObjective].format, seed_scale);
  const absl::StatusOr<void*> ranges = ranges_.Of(*device_, *stream_, sizeof(RangeColumn));
  if (!ranges.ok()) return ranges.status();
  adjoint_ranges_ = static_cast<RangeColumn*>(*ranges);
  if (batch_.instances == 0) return absl::OkStatus();
  if (source_->terminal_tape_units > kLongestTape) return TooLong("the terminal cost");
  if (source_->initial_tape_units > kLongestTape) return TooLong("`initial`");
  KernelArgs args = args_;
  args.first_step = batch_.steps;
  args.ranges = adjoint_ranges_;
  status = GiveTape(adjoint_grid_, source_->terminal_tape_units, args);
  if (status.ok()) status = GiveWorkspace(adjoint_grid_, args);
  if (status.ok()) status = GiveWindows(std::max<int64_t>(batch_.steps - 1, 0), 1, args);
  if (status.ok()) status = stream_->Fill(args.ranges, 0, sizeof(RangeColumn));
  if (status.ok()) status = Launch("simgrad_start_adjoint", adjoint_grid_, args);
  if (status.ok()) status = SumWindows(args);
  return status;
}

absl::StatusOr<AdjointChunk> CudaRun::Adjoint(int64_t first, int64_t count) {
  if (!failed_.ok()) return failed_;
  AdjointChunk chunk;
  chunk.steps.resize(static_cast<size_t>(count));
  if (batch_.instances == 0 || count == 0) return chunk;
  stale_ = true;
  KernelArgs args = args_;
  args.first_step = first;
  args.count = count;
  args.blocks = adjoint_grid_;
  args.ranges = adjoint_ranges_;
  const int64_t column = count * static_cast<int64_t>(sizeof(BackwardColumn));
  const auto partial = backward_partial_.Of(*device_, *stream_, adjoint_grid_ * column);
  if (!partial.ok()) return partial.status();
  const auto merged = backward_.Of(*device_, *stream_, column);
  if (!merged.ok()) return merged.status();
  args.backward_partial = static_cast<BackwardColumn*>(*partial);
  args.backward = static_cast<BackwardColumn*>(*merged);
  const std::optional<int64_t> units = TapeUnits(first, count);
  if (!units) return TooLong(absl::StrCat("steps ", first, " to ", first + count - 1));
  absl::Status status = GiveTape(adjoint_grid_, *units, args);
  if (status.ok()) status = GiveWorkspace(adjoint_grid_, args);
  if (status.ok()) status = GiveWindows(first, count, args);
  if (status.ok()) status = Launch("simgrad_adjoint", adjoint_grid_, args);
  if (status.ok()) status = SumWindows(args);
  if (status.ok()) status = Launch("simgrad_merge", count, args);
  std::vector<BackwardColumn> columns(static_cast<size_t>(count));
  if (status.ok()) status = stream_->ToHost(columns.data(), args.backward, column);
  RangeColumn ranges = {};
  if (status.ok()) status = stream_->ToHost(&ranges, args.ranges, sizeof(ranges));
  if (status.ok()) status = stream_->Fill(args.ranges, 0, sizeof(RangeColumn));
  if (!status.ok()) return status;
  CountEnded();
  for (size_t t = 0; t < columns.size(); ++t) chunk.steps[t] = BackwardOf(columns[t]);
  chunk.ranges = CountsOf(ranges);
  return chunk;
}

absl::Status CudaRun::FinishAdjoint() {
  if (!failed_.ok()) return failed_;
  stale_ = true;
  if (batch_.instances > 0) {
    KernelArgs args = args_;
    absl::Status status = GiveTape(adjoint_grid_, source_->initial_tape_units, args);
    if (status.ok()) status = GiveWorkspace(adjoint_grid_, args);
    if (status.ok()) status = GiveWindows(0, 1, args);
    if (status.ok()) status = Launch("simgrad_finish_adjoint", adjoint_grid_, args);
    if (status.ok()) status = SumWindows(args);
    if (!status.ok()) return status;
  }
  if (absl::Status status = weight_sums_.Take(); !status.ok()) return status;
  return TakeGradients();
}

void CudaRun::TakeGradient(int32_t input) {
  const size_t i = static_cast<size_t>(input);
  const Program& p = batch_.program->program;
  const int64_t count = ElementCount(p[p.inputs[i].value].type.shape);
  const int64_t steps = batch_.inputs[i].per_step ? batch_.steps : 1;
  gradients_[i].assign(static_cast<size_t>(batch_.instances * steps * count), 0.0);
  if (const auto sums = Read(FieldKind::kGradient, input)) {
    sums->Each([&](int64_t k, auto x) {
      gradients_[i][static_cast<size_t>(k)] = precision::Canonical(static_cast<double>(x));
    });
  }
}

absl::Status CudaRun::TakeGradients() {
  const NumericalProgram& numerical = *batch_.program;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const int32_t input = static_cast<int32_t>(i);
    connected_[i].assign(static_cast<size_t>(batch_.instances), 0);
    gradients_[i].clear();
    if (!numerical.adjoint_spec->wanted[i]) continue;
    if (!numerical.program.inputs[i].weights) TakeGradient(input);
    if (batch_.inputs[i].per_step && batch_.steps == 0) continue;  // there is no step to connect
    if (const auto flags = Read(FieldKind::kConnected, input)) {
      flags->Each([&](int64_t k, auto x) { connected_[i][static_cast<size_t>(k)] = x != 0; });
    }
  }
  return failed_;
}

}  // namespace simgrad::sim::cuda
