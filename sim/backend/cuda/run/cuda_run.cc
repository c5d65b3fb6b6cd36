#include "sim/backend/cuda/run/cuda_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "precision/selection.h"
#include "sim/backend/empty_chunk.h"
#include "sim/backend/value_tensors.h"
#include "sim/work_meter.h"

namespace simgrad::sim::cuda {
namespace {

// Default threads of a block: four warps hide latency and leave registers for each; a
// block per instance takes as many as its longest value has elements.
constexpr int kBlock = 128;
constexpr int kWarp = 32;
// Default share of the device's memory for the checkpoints of one run: several run at once.
constexpr int64_t kShare = 4;

int ChooseBlock(const NumericalProgram& program, Mapping mapping) {
  if (mapping == Mapping::kThreadPerInstance) return kBlock;
  int64_t longest = 1;
  for (const Value& value : program.program.values) {
    longest = std::max(longest, ElementCount(value.type.shape));
  }
  const int64_t warps = std::min<int64_t>((longest + kWarp - 1) / kWarp, kMostThreads / kWarp);
  return static_cast<int>(warps) * kWarp;
}

uint32_t FlagsOf(Recording recording) {
  switch (recording) {
    case Recording::kNone:
      return kRecordNothing;
    case Recording::kCounts:
    case Recording::kSummary:
      return kRecordSteps;
    case Recording::kInstances:
      break;
  }
  return kRecordSteps | kRecordInstances;
}

// FieldKind::kHealth.
InstanceHealth HealthOf(int64_t word) {
  InstanceHealth health;
  if (word < 0) return health;
  health.ok = false;
  health.stopped = (word & 1) != 0;
  health.phase = static_cast<Phase>((word >> 1) & 0x7F);
  health.step = word >> 8;
  return health;
}

}  // namespace

CudaRun::CudaRun(std::shared_ptr<Device> device, std::unique_ptr<Stream> stream,
                 std::unique_ptr<Stream> copies, std::shared_ptr<const GeneratedSource> source,
                 std::shared_ptr<const Module> module, Batch batch, RunOptions options,
                 const CudaExecutorOptions& launch_options)
    : device_(std::move(device)),
      stream_(std::move(stream)),
      copies_(std::move(copies)),
      source_(std::move(source)),
      module_(std::move(module)),
      batch_(std::move(batch)),
      options_(std::move(options)),
      launch_options_(launch_options),
      layout_(FieldLayout::Of(*source_, batch_.instances, batch_.steps)),
      block_(launch_options.block > 0 ? launch_options.block
                                      : ChooseBlock(*batch_.program, source_->mapping)),
      uploaded_(device_, *stream_),
      records_{ForwardRecord(*device_, *stream_, *copies_, batch_, options_),
               ForwardRecord(*device_, *stream_, *copies_, batch_, options_)},
      saved_(device_, *stream_, *copies_, layout_.travelling_bytes,
             launch_options_.checkpoint_bytes.value_or(device_->limits().memory_bytes / kShare)),
      weight_sums_(*device_, *stream_, batch_, *source_),
      gradients_(batch_.program->program.inputs.size()),
      connected_(batch_.program->program.inputs.size()) {
  ++device_->runs;
}

CudaRun::~CudaRun() {
  // Work that still runs uses the memory that is about to go.
  copies_->Wait().IgnoreError();
  stream_->Wait().IgnoreError();
  CountEnded();
  --device_->runs;
}

void CudaRun::CountLaunched() {
  if (!options_.is_trial && !std::exchange(launched_, true)) ++device_->launched;
}

void CudaRun::CountEnded() {
  if (std::exchange(launched_, false)) --device_->launched;
}

absl::StatusOr<std::unique_ptr<CudaRun>> CudaRun::Create(
    std::shared_ptr<Device> device, std::shared_ptr<const GeneratedSource> source,
    std::shared_ptr<const Module> module, Batch batch, RunOptions options,
    const CudaExecutorOptions& launch_options) {
  absl::StatusOr<std::unique_ptr<Stream>> stream = device->OpenStream();
  if (!stream.ok()) return stream.status();
  absl::StatusOr<std::unique_ptr<Stream>> copies = device->OpenStream();
  if (!copies.ok()) return copies.status();
  std::unique_ptr<CudaRun> run(new CudaRun(std::move(device), *std::move(stream),
                                           *std::move(copies), std::move(source), std::move(module),
                                           std::move(batch), std::move(options), launch_options));
  if (absl::Status status = run->Prepare(); !status.ok()) return status;
  return run;
}

absl::Status CudaRun::Prepare() {
  constexpr int64_t kMostInstances = std::numeric_limits<int32_t>::max();  // a rank has 31 bits
  if (batch_.instances > kMostInstances) {
    return absl::ResourceExhaustedError(
        absl::StrCat(batch_.instances, " instances; a kernel takes at most ", kMostInstances));
  }
  absl::StatusOr<Buffer> travelling = device_->Allocate(layout_.travelling_bytes);
  if (!travelling.ok()) return travelling.status();
  travelling_ = std::move(*travelling);
  args_.instances = batch_.instances;
  args_.steps = batch_.steps;
  args_.flags = FlagsOf(options_.recording);
  args_.stride = options_.stride;
  args_.near_band_ulps = options_.near_band_ulps;
  PointFields(travelling_.data(), nullptr, args_);
  if (batch_.program->adjoint) {
    absl::StatusOr<Buffer> units = device_->Allocate(8 * batch_.steps);
    if (!units.ok()) return units.status();
    tape_units_ = std::move(*units);
    args_.tape_units = static_cast<unsigned long long*>(tape_units_.data());
    units_.assign(static_cast<size_t>(batch_.steps), 0);
    absl::Status status = stream_->Fill(tape_units_.data(), 0, tape_units_.bytes());
    if (!status.ok()) return status;
    const absl::StatusOr<int64_t> grid = GridOf("simgrad_adjoint");
    if (!grid.ok()) return grid.status();
    adjoint_grid_ = *grid;
  }
  return uploaded_.Upload(batch_, *source_, args_);
}

void CudaRun::PointFields(void* travelling, void* adjoint, KernelArgs& args) const {
  for (size_t i = 0; i < layout_.places.size(); ++i) {
    const FieldPlace& place = layout_.places[i];
    void* const base = place.travels ? travelling : adjoint;
    args.field[i] = base == nullptr ? nullptr : static_cast<unsigned char*>(base) + place.offset;
  }
}

absl::StatusOr<int64_t> CudaRun::GridOf(const std::string& entry) {
  const bool per_thread = source_->mapping == Mapping::kThreadPerInstance;
  return GridOf(entry, per_thread ? (batch_.instances + block_ - 1) / block_ : batch_.instances,
                SharedBytes(entry));
}

int64_t CudaRun::SharedBytes(const std::string& entry) const {
  return source_->shared_bytes + (entry == "simgrad_forward" ? source_->window_bytes : 0);
}

absl::StatusOr<int64_t> CudaRun::GridOf(const std::string& entry, int64_t needed,
                                        int64_t shared_bytes) const {
  int64_t most = launch_options_.grid;
  if (most <= 0) {
    const absl::StatusOr<int64_t> resident =
        device_->ResidentBlocks(*module_, entry, block_, shared_bytes);
    if (!resident.ok()) return resident.status();
    most = *resident;
  }
  return std::max<int64_t>(1, std::min(needed, most));
}

absl::Status CudaRun::GiveWorkspace(int64_t grid, KernelArgs& args) {
  if (source_->workspace_bytes == 0) return absl::OkStatus();
  const absl::StatusOr<void*> data =
      workspace_.Of(*device_, *stream_, grid * source_->workspace_bytes);
  if (!data.ok()) return data.status();
  args.workspace = static_cast<unsigned char*>(*data);
  args.workspace_stride = source_->workspace_bytes;
  return absl::OkStatus();
}

// A kernel that runs is not stopped; between kernels the caller is asked.
absl::Status CudaRun::Launch(const std::string& entry, const LaunchShape& shape,
                             const KernelArgs& args) {
  if (options_.stop && options_.stop()) return StopRequested::Status();
  CountLaunched();  // the call itself may wait for what runs
  return stream_->Launch(*module_, entry, shape, args);
}

absl::Status CudaRun::Launch(const std::string& entry, int64_t grid, const KernelArgs& args) {
  return Launch(entry, {grid, block_, SharedBytes(entry)}, args);
}

absl::Status CudaRun::LaunchOverInstances(const std::string& entry, KernelArgs& args) {
  if (batch_.instances == 0) return absl::OkStatus();
  const absl::StatusOr<int64_t> grid = GridOf(entry);
  if (!grid.ok()) return grid.status();
  if (absl::Status status = GiveWorkspace(*grid, args); !status.ok()) return status;
  return Launch(entry, *grid, args);
}

absl::Status CudaRun::Start() {
  stale_ = stale_paths_ = true;
  KernelArgs args = args_;
  return LaunchOverInstances("simgrad_start", args);
}

// While a launch runs, what the one before it recorded travels and is read.
absl::StatusOr<ForwardChunk> CudaRun::Forward(int64_t first, int64_t count) {
  if (!failed_.ok()) return failed_;
  ForwardChunk chunk = EmptyChunk(batch_, options_, options_.stride, first, count);
  if (batch_.instances == 0 || count == 0) return chunk;
  stale_paths_ = true;  // health is read anew only where a launch says that it changed
  const absl::StatusOr<int64_t> grid = GridOf("simgrad_forward");
  if (!grid.ok()) return grid.status();
  const int64_t most = StepsPerLaunch(*grid, count);
  const bool values = options_.recording == Recording::kInstances;
  ForwardRecord* travels = nullptr;
  ForwardRecord* next = &records_[0];
  absl::Status status;
  for (int64_t t = first; t < first + count && status.ok(); t += most) {
    KernelArgs args = args_;
    args.first_step = t;
    args.count = std::min(most, first + count - t);
    args.blocks = *grid;
    status = ForwardLaunch(args, *next);
    if (status.ok() && travels != nullptr) status = Take(*travels, first, chunk);
    travels = next;
    next = next == &records_[0] ? &records_[1] : &records_[0];
    if (!status.ok() || !values) continue;
    // The values have their places only when it is known how many there are.
    status = Take(*travels, first, chunk);
    if (status.ok()) status = WriteValues(args, *travels, first, chunk);
    travels = nullptr;
  }
  if (status.ok() && travels != nullptr) status = Take(*travels, first, chunk);
  if (status.ok()) status = stream_->Wait();
  if (status.ok()) {
    CountEnded();
    return chunk;
  }
  failed_ = status;  // what is still on its way is dropped
  return status;
}

// The steps of one launch in a chunk of `count`. A few launches let most records be read while the
// chunk runs; a launch is never so short that launching takes long beside it.
int64_t CudaRun::StepsPerLaunch(int64_t grid, int64_t count) const {
  constexpr int64_t kLaunches = 4;
  constexpr int64_t kShortest = 32;
  int64_t most = std::min(kMostSteps, records_[0].StepsPerLaunch(grid));
  if (options_.recording == Recording::kCounts || options_.recording == Recording::kSummary) {
    most = std::min(most, std::max(kShortest, (count + kLaunches - 1) / kLaunches));
  }
  return launch_options_.steps > 0 ? std::min(most, launch_options_.steps) : most;
}

absl::Status CudaRun::ForwardLaunch(KernelArgs& args, ForwardRecord& record) {
  absl::Status status = record.Prepare(args.blocks, args);
  if (status.ok()) status = GiveWorkspace(args.blocks, args);
  if (!status.ok()) return status;
  if (options_.recording == Recording::kInstances) {
    const auto copy = before_.Of(*device_, *stream_, layout_.travelling_bytes);
    if (!copy.ok()) return copy.status();
    status = stream_->OnDevice(*copy, travelling_.data(), layout_.travelling_bytes);
  }
  if (status.ok()) status = Launch("simgrad_forward", args.blocks, args);
  if (status.ok() && options_.recording != Recording::kNone) {
    status = Launch("simgrad_merge", args.count, args);
  }
  return status.ok() ? record.Send(args) : status;
}

absl::Status CudaRun::Take(ForwardRecord& record, int64_t chunk_first, ForwardChunk& chunk) {
  absl::Status status = record.Take(uploaded_.sorted_ids(), chunk, chunk_first, units_);
  stale_ = stale_ || record.health_changed();
  return status;
}

// The same steps once more, from a copy of the states they began with: now that it is known how
// many values each instance has, they have a place.
absl::Status CudaRun::WriteValues(const KernelArgs& args, ForwardRecord& record,
                                  int64_t chunk_first, ForwardChunk& chunk) {
  const auto before = before_.Of(*device_, *stream_, layout_.travelling_bytes);
  if (!before.ok()) return before.status();
  KernelArgs again = args_;
  PointFields(*before, nullptr, again);
  again.first_step = args.first_step;
  again.count = args.count;
  again.blocks = args.blocks;
  again.workspace = args.workspace;
  again.workspace_stride = args.workspace_stride;
  again.flags = kValuesPass;
  again.tape_units = nullptr;
  absl::Status status = record.PrepareValues(again, chunk, chunk_first);
  if (status.ok()) status = Launch("simgrad_forward", again.blocks, again);
  if (status.ok()) status = record.ReadValues(chunk);
  return status;
}

std::shared_ptr<const void> CudaRun::SaveState() const {
  auto saved = saved_.Save(travelling_.data());
  failed_.Update(saved.status());
  if (!saved.ok()) return nullptr;
  return *std::move(saved);
}

void CudaRun::RestoreState(const std::shared_ptr<const void>& saved) {
  stale_ = stale_paths_ = true;
  if (saved == nullptr) return;  // failed_ says why
  const auto& copy = *static_cast<const SavedStates::Copy*>(saved.get());
  failed_.Update(saved_.Restore(copy, travelling_.data()));
}

absl::Status CudaRun::Finish() {
  if (!failed_.ok()) return failed_;
  stale_ = stale_paths_ = true;
  KernelArgs args = args_;
  args.first_step = batch_.steps;
  absl::Status status = LaunchOverInstances("simgrad_finish", args);
  if (status.ok()) status = stream_->Wait();
  if (status.ok()) CountEnded();
  return status;
}

std::optional<FieldNumbers> CudaRun::Read(FieldKind kind, int32_t index) const {
  const int found = FindField(*source_, kind, index);
  if (found < 0) return std::nullopt;
  const size_t i = static_cast<size_t>(found);
  const FieldPlace& place = layout_.places[i];
  const Buffer& base = place.travels ? travelling_ : adjoint_fields_;
  std::vector<uint8_t> bytes(static_cast<size_t>(place.bytes));
  if (place.bytes > 0) {
    const auto* const from = static_cast<const unsigned char*>(base.data()) + place.offset;
    const absl::Status status = stream_->ToHost(bytes.data(), from, place.bytes);
    failed_.Update(status);
    if (!status.ok()) return std::nullopt;
  }
  return FieldNumbers(source_->fields[i], source_->mapping, batch_.instances, batch_.steps,
                      std::move(bytes));
}

Tensor CudaRun::TensorOf(const Value& value, FieldKind kind, int32_t index) const {
  Tensor tensor = ZerosFor(value, {batch_.instances});
  if (const std::optional<FieldNumbers> numbers = Read(kind, index)) numbers->Put(tensor);
  return tensor;
}

Tensor CudaRun::State(int32_t state_input) const {
  const Program& p = batch_.program->program;
  const std::vector<int32_t> states = p.InputsOf(InputKind::kState);
  const auto place = std::find(states.begin(), states.end(), state_input);
  return TensorOf(p[p.inputs[static_cast<size_t>(state_input)].value], FieldKind::kState,
                  static_cast<int32_t>(place - states.begin()));
}

Tensor CudaRun::Export(int32_t export_index) const {
  const Program& p = batch_.program->program;
  return TensorOf(p[p.exports[static_cast<size_t>(export_index)].value], FieldKind::kExport,
                  export_index);
}

std::vector<double> CudaRun::Values() const {
  std::vector<double> values;
  if (batch_.program->objective.empty()) return values;
  values.assign(static_cast<size_t>(batch_.instances), 0.0);
  if (const std::optional<FieldNumbers> cost = Read(FieldKind::kCost)) {
    cost->Each([&](int64_t i, auto x) {
      values[static_cast<size_t>(i)] = precision::Canonical(static_cast<double>(x));
    });
  }
  return values;
}

const std::vector<uint64_t>& CudaRun::PathSignatures() const {
  if (options_.recording == Recording::kNone || !stale_paths_) return signatures_;
  stale_paths_ = false;
  signatures_.assign(static_cast<size_t>(batch_.instances), 0);
  if (const std::optional<FieldNumbers> numbers = Read(FieldKind::kSignature)) {
    numbers->Each(
        [&](int64_t i, auto x) { signatures_[static_cast<size_t>(i)] = static_cast<uint64_t>(x); });
  }
  return signatures_;
}

const std::vector<InstanceHealth>& CudaRun::Health() const {
  if (options_.recording == Recording::kNone || !stale_) return health_;
  stale_ = false;
  health_.assign(static_cast<size_t>(batch_.instances), {});
  const FieldKind kind = reversing_ ? FieldKind::kAdjointHealth : FieldKind::kHealth;
  if (const std::optional<FieldNumbers> numbers = Read(kind)) {
    numbers->Each([&](int64_t i, auto x) {
      health_[static_cast<size_t>(i)] = HealthOf(static_cast<int64_t>(x));
    });
  }
  return health_;
}

std::vector<std::vector<int64_t>> CudaRun::FirstEventSteps() const {
  std::vector<std::vector<int64_t>> steps;
  for (const Site& site : batch_.program->sites) {
    if (site.kind != SiteKind::kEvent) continue;
    std::vector<int64_t>& first = steps.emplace_back(static_cast<size_t>(batch_.instances), -1);
    if (const std::optional<FieldNumbers> numbers = Read(FieldKind::kFirstEvent, site.number)) {
      numbers->Each(
          [&](int64_t i, auto x) { first[static_cast<size_t>(i)] = static_cast<int64_t>(x); });
    }
  }
  return steps;
}

}  // namespace simgrad::sim::cuda
