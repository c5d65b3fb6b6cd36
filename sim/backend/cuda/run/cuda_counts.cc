#include "sim/backend/cuda/run/cuda_counts.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "sim/backend/cuda/run/field_layout.h"
#include "sim/plan/tape_bound.h"

namespace simgrad::sim::cuda {
namespace {

std::vector<Field> TravellingOf(const GeneratedSource& source) {
  std::vector<Field> fields;
  std::copy_if(source.fields.begin(), source.fields.end(), std::back_inserter(fields),
               [](const Field& field) { return Travels(field.kind); });
  return fields;
}

}  // namespace

CudaCounts::CudaCounts(std::shared_ptr<Device> device,
                       std::shared_ptr<const NumericalProgram> program,
                       const GeneratedSource& source, std::vector<uint64_t> units)
    : device_(std::move(device)),
      program_(std::move(program)),
      mapping_(source.mapping),
      travelling_(TravellingOf(source)),
      units_(std::move(units)) {}

int64_t CudaCounts::bytes() const {
  return static_cast<int64_t>(sizeof(CudaCounts) + units_.size() * sizeof(uint64_t) +
                              travelling_.size() * sizeof(Field));
}

std::optional<std::vector<uint64_t>> CudaCounts::UnitsFor(const NumericalProgram& program,
                                                          const GeneratedSource& source) const {
  if (source.mapping != mapping_ || TravellingOf(source) != travelling_) return std::nullopt;
  if (program.fingerprint == program_->fingerprint) return units_;
  const std::optional<double> bound = plan::TapeBound(*program_, program);
  if (!bound) return std::nullopt;
  constexpr double kBeyondTapes = 0x1p40;  // more than any position, and few enough to add to
  std::vector<uint64_t> units;
  for (const uint64_t counted : units_) {
    const double most = std::ceil(*bound * static_cast<double>(counted));
    units.push_back(static_cast<uint64_t>(std::min(most, kBeyondTapes)));
  }
  return units;
}

}  // namespace simgrad::sim::cuda
