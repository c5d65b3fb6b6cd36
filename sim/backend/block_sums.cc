#include "sim/backend/block_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <span>

#include "precision/arithmetic.h"
#include "precision/loss_scale.h"
#include "precision/selection.h"

namespace simgrad::sim {
namespace {

using precision::Format;

constexpr int64_t kNumberWork = 4;  // of one number, in element-operations

// The least x >= 0 for which `holds`, which then holds for all that are larger; infinity if none.
template <class Holds>
double LeastThat(const Holds& holds) {
  uint64_t low = 0, high = std::bit_cast<uint64_t>(std::numeric_limits<double>::infinity());
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (holds(std::bit_cast<double>(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::bit_cast<double>(low);
}

// The least number of T that is not below x, and above 0.
template <class T>
T NotBelow(double x) {
  if (x > static_cast<double>(std::numeric_limits<T>::max())) {
    return std::numeric_limits<T>::infinity();
  }
  const T near = std::max(static_cast<T>(x), std::numeric_limits<T>::denorm_min());
  return static_cast<double>(near) < x ? std::nextafter(near, std::numeric_limits<T>::infinity())
                                       : near;
}

// round(a + b), element by element.
void AddRounded(std::span<double> a, std::span<const double> b, Format format) {
  if (format == Format::kF64) {
    for (size_t k = 0; k < a.size(); ++k) a[k] = precision::Canonical(a[k] + b[k]);
  } else if (format == Format::kF32) {
    // The sum of two floats in double, rounded once more, is that of floats (arithmetic.h).
    for (size_t k = 0; k < a.size(); ++k) {
      a[k] = precision::Canonical(static_cast<double>(static_cast<float>(a[k] + b[k])));
    }
  } else {
    for (size_t k = 0; k < a.size(); ++k) a[k] = precision::Add(format, a[k], b[k]);
  }
}

void RoundAll(std::span<double> numbers, Format format) {
  if (format == Format::kF64) return;
  if (format == Format::kF32) {
    for (double& x : numbers) x = precision::Canonical(static_cast<double>(static_cast<float>(x)));
  } else {
    for (double& x : numbers) x = precision::RoundTo(format, x);
  }
}

// Sums of `rows` neighbours, a power of two of at least 2, in pairs of pairs: of `elements` elements
// whose rows adjoin in `from`. T holds the format, Accumulator the accumulator, both f32 or f64.
template <class Accumulator, class T>
void SumNeighbours(const T* from, int64_t element_stride, int64_t elements, int64_t rows,
                   const double* weights, bool all_ones, double* to) {
  constexpr int64_t kAtOnce = 4096;
  std::array<Accumulator, kAtOnce> sums;
  const int64_t half = rows / 2;
  const int64_t tile = kAtOnce / half;
  for (int64_t begin = 0; begin < elements; begin += tile) {
    const int64_t count = std::min(tile, elements - begin);
    for (int64_t e = 0; e < count; ++e) {
      const T* const row = from + (begin + e) * element_stride;
      Accumulator* const pair = sums.data() + e * half;
      if (all_ones) {
        for (int64_t j = 0; j < half; ++j) {
          pair[j] = static_cast<Accumulator>(row[2 * j]) + static_cast<Accumulator>(row[2 * j + 1]);
        }
      } else {
        for (int64_t j = 0; j < half; ++j) {
          const T left = static_cast<T>(weights[2 * j] * static_cast<double>(row[2 * j]));
          const T right = static_cast<T>(weights[2 * j + 1] * static_cast<double>(row[2 * j + 1]));
          pair[j] = static_cast<Accumulator>(left) + static_cast<Accumulator>(right);
        }
      }
    }
    for (int64_t n = half; n > 1; n /= 2) {
      const int64_t pairs = count * n / 2;
      for (int64_t j = 0; j < pairs; ++j) sums[j] = sums[2 * j] + sums[2 * j + 1];
    }
    for (int64_t e = 0; e < count; ++e) {
      to[begin + e] = precision::Canonical(static_cast<double>(sums[e]));
    }
  }
}

}  // namespace

std::vector<BlockSums::Wanted> BlockSums::WantedOf(const NumericalProgram& program) {
  std::vector<Wanted> wanted;
  if (!program.adjoint_spec) return wanted;
  int64_t offset = 0;
  for (size_t i = 0; i < program.program.inputs.size(); ++i) {
    const Input& input = program.program.inputs[i];
    if (!input.weights || !program.adjoint_spec->wanted[i]) continue;
    const int64_t elements = ElementCount(program.program[input.value].type.shape);
    wanted.push_back({static_cast<int32_t>(i), elements, offset});
    offset += elements;
  }
  return wanted;
}

BlockSums::BlockSums(const NumericalProgram& program, InstanceWeights over, int64_t rows_of_group,
                     double loss_scale)
    : setting_(program.policy[Role::kGradient]),
      loss_scale_(loss_scale),
      over_(std::move(over)),
      rows_of_group_(rows_of_group),
      wanted_(WantedOf(program)),
      seen_(wanted_.size()) {
  for (const Wanted& wanted : wanted_) numbers_ += wanted.elements;
  const float inverse = precision::InverseLossScale(static_cast<float>(loss_scale));
  const auto unscaled = [&](double x) { return precision::Unscale(setting_.format, x, inverse); };
  least_told_ = LeastThat([&](double x) { return unscaled(x) != 0.0; });
  least_infinite_ = LeastThat([&](double x) { return !precision::IsFinite(unscaled(x)); });
  for (Seen& seen : seen_) seen.nonzero.assign(over_.weights.size(), 0);
  MakePieces();
}

// ---- pieces ----

// Splits the ids of each block until all that are left share a group.
void BlockSums::MakePieces() {
  const int64_t rows = static_cast<int64_t>(over_.weights.size());
  groups_.resize(static_cast<size_t>((rows + rows_of_group_ - 1) / rows_of_group_));
  for (size_t begin = 0; begin < over_.ids.size();) {
    const uint64_t number = over_.ids[begin] >> kLevel;
    size_t end = begin;
    while (end < over_.ids.size() && over_.ids[end] >> kLevel == number) ++end;
    blocks_.push_back({.number = number});
    MakePiece({kLevel, number}, begin, end, blocks_.size() - 1);
    Block& block = blocks_.back();
    std::set<size_t> of_groups;
    for (const PieceAt& at : block.pieces) of_groups.insert(at.group);
    block.of_groups.assign(of_groups.begin(), of_groups.end());
    begin = end;
  }
}

void BlockSums::MakePiece(const precision::AlignedBlock& node, size_t begin, size_t end,
                          size_t block) {
  if (begin == end) return;
  const auto group_of = [&](size_t place) {
    return over_.rows[place] / static_cast<size_t>(rows_of_group_);
  };
  const size_t group = group_of(begin);
  bool is_one = true;
  for (size_t place = begin; place < end; ++place) is_one = is_one && group_of(place) == group;
  if (!is_one) {
    const precision::AlignedBlock left = {node.level - 1, 2 * node.index};
    const auto from = over_.ids.begin();
    const auto middle = std::upper_bound(from + static_cast<std::ptrdiff_t>(begin),
                                         from + static_cast<std::ptrdiff_t>(end), left.Last());
    const size_t at = static_cast<size_t>(middle - from);
    MakePiece(left, begin, at, block);
    MakePiece({node.level - 1, 2 * node.index + 1}, at, end, block);
    return;
  }
  Piece piece = {.block = block, .node = node};
  for (size_t place = begin; place < end; ++place) {
    const size_t row = over_.rows[place];
    piece.rows.push_back(static_cast<int64_t>(row) - static_cast<int64_t>(group) * rows_of_group_);
    piece.ids.push_back(over_.ids[place]);
    piece.weights.push_back(over_.weights[row]);
    piece.all_ones = piece.all_ones && over_.weights[row] == 1.0;
  }
  piece.is_dense = true;
  for (size_t k = 1; k < piece.rows.size(); ++k) {
    const bool adjoins = piece.rows[k] == piece.rows[k - 1] + 1 &&
                         over_.ids[begin + k] == over_.ids[begin + k - 1] + 1;
    piece.is_dense = piece.is_dense && adjoins;
  }
  // Adjoining ids, as many as a node has, are a node where the first begins one.
  const size_t count = piece.rows.size();
  piece.is_dense =
      piece.is_dense && count > 1 && std::has_single_bit(count) && over_.ids[begin] % count == 0;
  groups_[group].pieces.push_back(std::move(piece));
  blocks_[block].pieces.push_back({group, groups_[group].pieces.size() - 1});
}

// ---- sums of entries ----

void BlockSums::Open(int64_t entries) {
  entries_ = entries;
  for (Group& group : groups_) group.waiting = 0;
  for (Block& block : blocks_) {
    block.missing = block.of_groups.size();
    for (size_t group : block.of_groups) ++groups_[group].waiting;
    block.total.resize(static_cast<size_t>(numbers_));
  }
}

template <class T>
void BlockSums::Give(int64_t group, size_t which, int64_t entry, const T* numbers,
                     int64_t element_stride, int64_t row_stride, WorkMeter& meter) {
  Group& to = groups_[static_cast<size_t>(group)];
  if (to.pieces.empty()) return;
  const Wanted& wanted = wanted_[which];
  if (to.sums.empty()) {
    ResizeInPieces(meter, to.sums, static_cast<size_t>(entries_ * numbers_) * to.pieces.size());
  }
  const Format format = setting_.format;
  const Format accumulator = setting_.accumulator;
  const bool is_plain =
      format == (sizeof(T) == 4 ? Format::kF32 : Format::kF64) &&
      (accumulator == Format::kF64 || (accumulator == Format::kF32 && format == Format::kF32));
  for (size_t p = 0; p < to.pieces.size(); ++p) {
    const Piece& piece = to.pieces[p];
    const int64_t rows = static_cast<int64_t>(piece.rows.size());
    const size_t place = static_cast<size_t>(entry) * to.pieces.size() + p;
    double* const sums = to.sums.data() + place * static_cast<size_t>(numbers_) + wanted.offset;
    meter.Add(kNumberWork * wanted.elements * (1 + rows / 8));
    if (piece.is_dense && is_plain && row_stride == 1) {
      const T* const from = numbers + piece.rows.front();
      if (accumulator == Format::kF64) {
        SumNeighbours<double>(from, element_stride, wanted.elements, rows, piece.weights.data(),
                              piece.all_ones, sums);
      } else {
        SumNeighbours<T>(from, element_stride, wanted.elements, rows, piece.weights.data(),
                         piece.all_ones, sums);
      }
      continue;
    }
    constexpr int64_t kTile = 256;
    std::array<double, kTile> leaf;
    for (int64_t begin = 0; begin < wanted.elements; begin += kTile) {
      const int64_t count = std::min(kTile, wanted.elements - begin);
      const std::span<double> leaves(leaf.data(), static_cast<size_t>(count));
      precision::AlignedSum sum(static_cast<size_t>(count), accumulator);
      for (int64_t k = 0; k < rows; ++k) {
        meter.Add(kNumberWork * count);
        const T* const from = numbers + piece.rows[static_cast<size_t>(k)] * row_stride;
        const double weight = piece.weights[static_cast<size_t>(k)];
        for (int64_t e = 0; e < count; ++e) {
          leaf[static_cast<size_t>(e)] = precision::Mul(
              format, weight, static_cast<double>(from[(begin + e) * element_stride]));
        }
        sum.Add(piece.ids[static_cast<size_t>(k)], leaves);
      }
      const std::vector<double> root = sum.Take();
      std::copy(root.begin(), root.end(), sums + begin);
    }
  }
  See(to, group * rows_of_group_, which, numbers, element_stride, row_stride);
}

template <class T>
void BlockSums::See(const Group& group, int64_t first_row, size_t which, const T* numbers,
                    int64_t element_stride, int64_t row_stride) {
  Seen& seen = seen_[which];
  // In the type of the numbers, so that a compiler makes vectors of it.
  const auto [least, infinite] = Told<T>();
  T smallest = std::numeric_limits<T>::infinity();
  T largest = 0;
  constexpr int64_t kAtOnce = 64;
  std::array<T, kAtOnce> all, small, large;
  const int64_t elements = wanted_[which].elements;
  for (const Piece& piece : group.pieces) {
    for (size_t begin = 0; begin < piece.rows.size();) {
      // Rows that adjoin.
      size_t end = begin + 1;
      while (end < piece.rows.size() && end - begin < kAtOnce &&
             piece.rows[end] == piece.rows[end - 1] + 1) {
        ++end;
      }
      const int64_t count = static_cast<int64_t>(end - begin);
      all.fill(0);
      small.fill(std::numeric_limits<T>::infinity());
      large.fill(0);
      const T* const from = numbers + piece.rows[begin] * row_stride;
      for (int64_t e = 0; e < elements; ++e) {
        const T* const row = from + e * element_stride;
        for (int64_t r = 0; r < count; ++r) {
          const T magnitude = std::abs(row[r * row_stride]);
          // NaN is neither 0 nor told.
          all[r] = magnitude == T{0} ? all[r] : T{1};
          const bool is_told = magnitude >= least && magnitude < infinite;
          small[r] = is_told && magnitude < small[r] ? magnitude : small[r];
          large[r] = is_told && magnitude > large[r] ? magnitude : large[r];
        }
      }
      for (int64_t r = 0; r < count; ++r) {
        const size_t row = static_cast<size_t>(first_row + piece.rows[begin] + r);
        if (all[r] != T{0}) seen.nonzero[row] = 1;
        smallest = std::min(smallest, small[r]);
        largest = std::max(largest, large[r]);
      }
      begin = end;
    }
  }
  const std::scoped_lock lock(mutex_);
  seen.smallest = std::min(seen.smallest, static_cast<double>(smallest));
  seen.largest = std::max(seen.largest, static_cast<double>(largest));
}

template <class T>
BlockSums::ToldMagnitudes<T> BlockSums::Told() const {
  return {NotBelow<T>(least_told_), NotBelow<T>(least_infinite_)};
}
template BlockSums::ToldMagnitudes<float> BlockSums::Told() const;
template BlockSums::ToldMagnitudes<double> BlockSums::Told() const;

template void BlockSums::Give(int64_t, size_t, int64_t, const float*, int64_t, int64_t, WorkMeter&);
template void BlockSums::Give(int64_t, size_t, int64_t, const double*, int64_t, int64_t,
                              WorkMeter&);

void BlockSums::Ended(int64_t group, WorkMeter& meter) {
  std::vector<size_t> complete;
  {
    const std::scoped_lock lock(mutex_);
    for (const Piece& piece : groups_[static_cast<size_t>(group)].pieces) {
      Block& block = blocks_[piece.block];
      const bool again = &piece != groups_[static_cast<size_t>(group)].pieces.data() &&
                         (&piece - 1)->block == piece.block;
      if (!again && --block.missing == 0) complete.push_back(piece.block);
    }
  }
  for (size_t number : complete) {
    Block& block = blocks_[number];
    Join(block, meter);
    const std::scoped_lock lock(mutex_);
    for (size_t of : block.of_groups) {
      if (--groups_[of].waiting == 0) std::vector<double>().swap(groups_[of].sums);
    }
  }
}

void BlockSums::Join(Block& block, WorkMeter& meter) {
  const size_t width = static_cast<size_t>(numbers_);
  precision::AlignedSum sum(width, setting_.accumulator);
  for (int64_t entry = entries_; entry-- > 0;) {
    for (const PieceAt& at : block.pieces) {
      meter.Add(kNumberWork * numbers_);
      const Group& group = groups_[at.group];
      const size_t place = static_cast<size_t>(entry) * group.pieces.size() + at.piece;
      sum.Add(group.pieces[at.piece].node, std::span(group.sums.data() + place * width, width));
    }
    std::vector<double> root = sum.Take();
    RoundAll(root, setting_.format);
    AddRounded(block.total, root, setting_.format);
  }
}

void BlockSums::Put(size_t which, std::span<const double> totals, std::vector<uint8_t> nonzero,
                    double smallest, double largest) {
  const Wanted& wanted = wanted_[which];
  auto from = totals.begin();
  for (Block& block : blocks_) {
    block.total.resize(static_cast<size_t>(numbers_));
    std::copy(from, from + wanted.elements, block.total.begin() + wanted.offset);
    from += wanted.elements;
  }
  seen_[which] = {std::move(nonzero), smallest, largest};
}

// As precision::AlignedSum joins them, each join as soon as both sides are whole.
BlockOrder OrderOf(const InstanceWeights& over) {
  const size_t rows = over.ids.size();
  BlockOrder order;
  order.joins.assign(rows, 0);
  std::vector<int> waiting;  // levels at which what is on the stack, but for its lowest, is joined
  for (size_t k = 0; k < rows; ++k) {
    if (k == 0 || over.ids[k] >> BlockSums::kLevel != over.ids[k - 1] >> BlockSums::kLevel) {
      order.begin.push_back(k);
      waiting.clear();
    }
    const bool is_last =
        k + 1 == rows || over.ids[k + 1] >> BlockSums::kLevel != over.ids[k] >> BlockSums::kLevel;
    const int next =
        is_last ? BlockSums::kLevel + 1 : std::bit_width(over.ids[k] ^ over.ids[k + 1]);
    for (; !waiting.empty() && waiting.back() < next; waiting.pop_back()) ++order.joins[k];
    waiting.push_back(next);
  }
  order.begin.push_back(rows);
  return order;
}

// ---- memory and results ----

int64_t BlockSums::BytesPerEntry(int threads) const {
  // Groups that wait, one after another; and as many more as other threads work on.
  std::vector<size_t> missing;
  for (const Block& block : blocks_) missing.push_back(block.of_groups.size());
  std::vector<int> waiting(groups_.size(), 0);
  for (const Block& block : blocks_) {
    for (size_t group : block.of_groups) ++waiting[group];
  }
  int64_t held = 0;
  int64_t most = 0;
  int64_t largest = 0;
  for (const Group& group : groups_) {
    const int64_t own = static_cast<int64_t>(group.pieces.size());
    largest = std::max(largest, own);
    held += own;
    most = std::max(most, held);
    for (size_t p = 0; p < group.pieces.size(); ++p) {
      const size_t of = group.pieces[p].block;
      if (p > 0 && group.pieces[p - 1].block == of) continue;
      if (--missing[of] > 0) continue;
      for (size_t member : blocks_[of].of_groups) {
        if (--waiting[member] == 0) held -= static_cast<int64_t>(groups_[member].pieces.size());
      }
    }
  }
  // A block that waits for a slow thread holds the others' next blocks back too.
  const int64_t per_block = (int64_t{1} << kLevel) / std::max<int64_t>(rows_of_group_, 1) + 2;
  const int64_t others = (threads - 1) * per_block * largest;
  int64_t all = 0;
  for (const Group& group : groups_) all += static_cast<int64_t>(group.pieces.size());
  return 8 * numbers_ * std::min(all, most + others);
}

int64_t BlockSums::TotalBytes() const {
  return 8 * numbers_ * static_cast<int64_t>(blocks_.size());
}

std::vector<precision::AlignedNode> BlockSums::Totals(size_t which) const {
  const Wanted& wanted = wanted_[which];
  std::vector<precision::AlignedNode> nodes;
  for (const Block& block : blocks_) {
    const auto from = block.total.begin() + wanted.offset;
    const bool is_open = block.total.empty();  // nothing was ever given
    nodes.push_back({{kLevel, block.number},
                     is_open ? std::vector<double>(static_cast<size_t>(wanted.elements), 0.0)
                             : std::vector<double>(from, from + wanted.elements)});
  }
  return nodes;
}

GradientMagnitudes BlockSums::Magnitudes(size_t which) const {
  const Seen& seen = seen_[which];
  GradientMagnitudes magnitudes;
  for (size_t row : over_.rows) magnitudes.zero += seen.nonzero[row] == 0 ? 1 : 0;
  if (seen.largest == 0.0) return magnitudes;
  const float inverse = precision::InverseLossScale(static_cast<float>(loss_scale_));
  magnitudes.smallest = precision::Unscale(setting_.format, seen.smallest, inverse);
  magnitudes.largest = precision::Unscale(setting_.format, seen.largest, inverse);
  return magnitudes;
}

}  // namespace simgrad::sim
