#include "sim/backend/cuda/run/weight_sums.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "precision/selection.h"
#include "sim/backend/cuda/run/field_layout.h"

namespace simgrad::sim::cuda {
namespace {

static_assert(kSumDepth == BlockOrder::kDepth);

constexpr int64_t kAlignment = 256;  // as in field_layout.cc
constexpr int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t BlocksOfIds(const std::vector<uint64_t>& ids) {
  std::set<uint64_t> blocks;
  for (uint64_t id : ids) blocks.insert(id >> BlockSums::kLevel);
  return static_cast<int64_t>(blocks.size());
}

constexpr uint64_t kNoSmallest = ~uint64_t{0};

}  // namespace

WeightSums::WeightSums(Device& device, Stream& stream, const Batch& batch,
                       const GeneratedSource& source)
    : device_(device), stream_(stream), mapping_(source.mapping), instances_(batch.instances) {
  for (const BlockSums::Wanted& wanted : BlockSums::WantedOf(*batch.program)) {
    const int field = FindField(source, FieldKind::kGradient, wanted.input);
    windows_.push_back({.field = field, .elements = wanted.elements});
    number_bytes_ = MemoryTypeBytes(source.fields[static_cast<size_t>(field)].memory_type);
  }
  if (windows_.empty()) return;
  most_blocks_ = BlocksOfIds(batch.instance_ids);
  Place();
}

// Gives everything that stays its place in memory_.
void WeightSums::Place() {
  const auto take = [&](int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += Aligned(bytes);
    return at;
  };
  order_ = {.begin = take(4 * (most_blocks_ + 1)),
            .row = take(4 * instances_),
            .joins = take(instances_),
            .weight = take(8 * instances_)};
  for (Window& window : windows_) {
    window.total = take(most_blocks_ * window.elements * number_bytes_);
    window.nonzero = take(4 * instances_);
    window.extremes = take(2 * 8);
  }
}

int64_t WeightSums::WindowBytes(int64_t entries) const {
  int64_t bytes = 0;
  for (const Window& window : windows_) {
    bytes += Aligned(entries * window.elements * instances_ * number_bytes_);
  }
  return bytes;
}

int64_t WeightSums::TotalBytes() const { return bytes_; }

absl::Status WeightSums::Start(const Batch& batch, const InstanceWeights& over, double loss_scale) {
  if (windows_.empty()) return absl::OkStatus();
  WorkMeter meter;  // one group: it is soon done
  sums_.emplace(*batch.program, over, std::max<int64_t>(instances_, 1), loss_scale, meter);
  if (memory_.data() == nullptr) {
    absl::StatusOr<Buffer> memory = device_.Allocate(bytes_);
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
  }
  absl::Status status = stream_.Fill(memory_.data(), 0, bytes_);
  for (const Window& window : windows_) {
    if (status.ok()) status = stream_.ToDevice(At<void>(window.extremes), &kNoSmallest, 8);
  }
  if (status.ok()) status = Upload(over);
  return status;
}

absl::Status WeightSums::Upload(const InstanceWeights& over) {
  const BlockOrder order = OrderOf(over);
  const std::vector<uint32_t> begin(order.begin.begin(), order.begin.end());
  const std::vector<uint32_t> rows(over.rows.begin(), over.rows.end());
  std::vector<double> weights;
  for (size_t row : over.rows) weights.push_back(over.weights[row]);
  const auto send = [&](int64_t to, const auto& numbers) {
    return stream_.ToDevice(At<void>(to), numbers.data(),
                            static_cast<int64_t>(numbers.size() * sizeof(numbers[0])));
  };
  absl::Status status = send(order_.begin, begin);
  if (status.ok()) status = send(order_.row, rows);
  if (status.ok()) status = send(order_.joins, order.joins);
  if (status.ok()) status = send(order_.weight, weights);
  return status;
}

absl::Status WeightSums::Open(void* memory, int64_t first, int64_t entries, KernelArgs& args) {
  entries_ = entries;
  args.window_first = first;
  auto* at = static_cast<unsigned char*>(memory);
  for (const Window& window : windows_) {
    args.field[window.field] = at;
    at += Aligned(entries * window.elements * instances_ * number_bytes_);
  }
  return stream_.Fill(memory, 0, WindowBytes(entries));
}

WeightSumsView WeightSums::View(size_t input, const KernelArgs& args) const {
  const Window& window = windows_[input];
  const bool spread = mapping_ == Mapping::kThreadPerInstance;
  WeightSumsView view = {};
  view.given = args.field[window.field];
  view.entries = entries_;
  view.elements = window.elements;
  view.blocks = static_cast<int64_t>(sums_->blocks());
  view.entry_stride = window.elements * instances_;
  view.element_stride = spread ? instances_ : 1;
  view.row_stride = spread ? 1 : window.elements;
  view.block_begin = At<uint32_t>(order_.begin);
  view.row = At<uint32_t>(order_.row);
  view.joins = At<uint8_t>(order_.joins);
  view.weight = At<double>(order_.weight);
  view.total = At<void>(window.total);
  view.nonzero = At<uint32_t>(window.nonzero);
  view.extremes = At<unsigned long long>(window.extremes);
  if (number_bytes_ == 4) {
    const auto told = sums_->Told<float>();
    view.least_told = std::bit_cast<uint32_t>(told.least);
    view.least_infinite = std::bit_cast<uint32_t>(told.infinite);
  } else {
    const auto told = sums_->Told<double>();
    view.least_told = std::bit_cast<uint64_t>(told.least);
    view.least_infinite = std::bit_cast<uint64_t>(told.infinite);
  }
  return view;
}

template <class T>
absl::Status WeightSums::TakeInput(size_t input) {
  const Window& window = windows_[input];
  std::vector<T> totals(sums_->blocks() * static_cast<size_t>(window.elements));
  std::vector<uint32_t> nonzero(static_cast<size_t>(instances_));
  uint64_t extremes[2] = {kNoSmallest, 0};
  absl::Status status = stream_.ToHost(totals.data(), At<void>(window.total),
                                       static_cast<int64_t>(totals.size() * sizeof(T)));
  if (status.ok())
    status = stream_.ToHost(nonzero.data(), At<void>(window.nonzero), 4 * instances_);
  if (status.ok()) status = stream_.ToHost(extremes, At<void>(window.extremes), sizeof(extremes));
  if (!status.ok()) return status;
  std::vector<double> wide;
  for (const T x : totals) wide.push_back(precision::Canonical(static_cast<double>(x)));
  const auto magnitude = [](uint64_t bits) {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    return static_cast<double>(std::bit_cast<T>(static_cast<Bits>(bits)));
  };
  const bool any = extremes[1] != 0;
  sums_->Put(input, wide, {nonzero.begin(), nonzero.end()},
             any ? magnitude(extremes[0]) : std::numeric_limits<double>::infinity(),
             any ? magnitude(extremes[1]) : 0.0);
  return absl::OkStatus();
}

absl::Status WeightSums::Take() {
  for (size_t k = 0; k < windows_.size(); ++k) {
    absl::Status status = number_bytes_ == 4 ? TakeInput<float>(k) : TakeInput<double>(k);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace simgrad::sim::cuda
