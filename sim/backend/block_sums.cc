#include "sim/backend/block_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <type_traits>

#include "precision/arithmetic.h"
#include "precision/loss_scale.h"
#include "precision/selection.h"
#include "sim/backend/row_sums.h"

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
                     double loss_scale, WorkMeter& meter)
    : setting_(program.policy[Role::kGradient]),
      loss_scale_(loss_scale),
      over_(std::move(over)),
      rows_of_group_(rows_of_group),
      wanted_(WantedOf(program)),
      seen_(wanted_.size()) {
  for (const Wanted& wanted : wanted_) numbers_ += wanted.elements;
  const float inverse = precision::InverseLossScale(loss_scale);
  const auto unscaled = [&](double x) { return precision::Unscale(setting_.format, x, inverse); };
  least_told_ = LeastThat([&](double x) { return unscaled(x) != 0.0; });
  least_infinite_ = LeastThat([&](double x) { return !precision::IsFinite(unscaled(x)); });
  for (Seen& seen : seen_) seen.nonzero.assign(over_.weights.size(), 0);
  ResizeInPieces(meter, weights_, over_.rows.size());
  for (size_t k = 0; k < weights_.size(); ++k) weights_[k] = over_.weights[over_.rows[k]];
  MakePieces(meter);
}

// ---- pieces ----

// Splits the ids of each block until all that are left share a group.
void BlockSums::MakePieces(WorkMeter& meter) {
  const int64_t rows = static_cast<int64_t>(over_.weights.size());
  ResizeInPieces(meter, groups_, static_cast<size_t>((rows + rows_of_group_ - 1) / rows_of_group_));
  for (size_t begin = 0; begin < over_.ids.size();) {
    const uint64_t number = over_.ids[begin] >> kLevel;
    size_t end = begin;
    while (end < over_.ids.size() && over_.ids[end] >> kLevel == number) ++end;
    blocks_.push_back({.number = number});
    MakePiece({kLevel, number}, begin, end, blocks_.size() - 1, meter);
    Block& block = blocks_.back();
    for (const PieceAt& at : block.pieces) block.of_groups.push_back(at.group);
    std::sort(block.of_groups.begin(), block.of_groups.end());
    block.of_groups.erase(std::unique(block.of_groups.begin(), block.of_groups.end()),
                          block.of_groups.end());
    begin = end;
  }
  for (const Group& group : groups_) {
    most_pieces_ = std::max(most_pieces_, static_cast<int64_t>(group.pieces.size()));
  }
}

void BlockSums::MakePiece(const precision::AlignedBlock& node, size_t begin, size_t end,
                          size_t block, WorkMeter& meter) {
  if (begin == end) return;
  constexpr int64_t kPlaceWork = 8;
  meter.Add(kPlaceWork * static_cast<int64_t>(end - begin));
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
    MakePiece(left, begin, at, block, meter);
    MakePiece({node.level - 1, 2 * node.index + 1}, at, end, block, meter);
    return;
  }
  // Adjoining ids, as many as a node has, are a node where the first begins one.
  const size_t count = end - begin;
  Piece piece = {.block = block, .node = node, .begin = begin, .end = end};
  piece.is_dense = count > 1 && std::has_single_bit(count) && over_.ids[begin] % count == 0;
  for (size_t place = begin; place < end; ++place) {
    piece.all_ones = piece.all_ones && weights_[place] == 1.0;
    if (place == begin) continue;
    const bool adjoins = over_.rows[place] == over_.rows[place - 1] + 1 &&
                         over_.ids[place] == over_.ids[place - 1] + 1;
    piece.is_dense = piece.is_dense && adjoins;
  }
  groups_[group].pieces.push_back(piece);
  blocks_[block].pieces.push_back({group, groups_[group].pieces.size() - 1});
}

// ---- sums of entries ----

void BlockSums::Open(int64_t entries) {
  if (entries != entries_) spare_.clear();
  entries_ = entries;
  for (Group& group : groups_) group.waiting = 0;
  for (Block& block : blocks_) {
    block.missing = block.of_groups.size();
    for (size_t group : block.of_groups) ++groups_[group].waiting;
  }
}

void BlockSums::TakeMemory(Group& group) {
  const std::scoped_lock lock(mutex_);
  if (spare_.empty()) {
    const int64_t most = entries_ * numbers_ * most_pieces_;
    group.sums = std::make_unique_for_overwrite<double[]>(static_cast<size_t>(most));
    return;
  }
  group.sums = std::move(spare_.back());
  spare_.pop_back();
}

// The magnitudes of the rows of a group, as they are seen.
template <class T>
class BlockSums::Extremes {
 public:
  Extremes(const ToldMagnitudes<T>& told, int64_t rows)
      : told_(told), least_(static_cast<size_t>(rows), ~Bits{0}), most_(least_.size(), 0) {}

  // Rows [first, first + count), which adjoin in memory.
  void See(const Tile<T>& tile, int64_t first, int64_t count) {
    const T* const from = tile.numbers + first * tile.row_stride;
    BoundRows(from, tile.element_stride, tile.count, count, least_.data() + first,
              most_.data() + first);
  }

  // The same of all products of a column of factors with a row of them, whose extremes are products of
  // extremes: rounding keeps the order. Returns false, having seen nothing, where a factor or a
  // product is not finite. A least product that is rounded to 0 is below all that are told.
  bool SeeProducts(const T* factors, int64_t rows, int64_t columns, int64_t lanes, int64_t first,
                   int64_t count) {
    std::vector<Bits> least[2], most[2];
    for (const int side : {0, 1}) {
      least[side].assign(static_cast<size_t>(count), ~Bits{0});
      most[side].assign(static_cast<size_t>(count), 0);
      BoundRows(factors + (side == 0 ? 0 : rows * lanes) + first, lanes, side == 0 ? rows : columns,
                count, least[side].data(), most[side].data());
    }
    for (size_t r = 0; r < least[0].size(); ++r) {
      const T a = std::bit_cast<T>(most[0][r]);
      const T b = std::bit_cast<T>(most[1][r]);
      const T low = std::bit_cast<T>(static_cast<Bits>(least[0][r] + 1)) *
                    std::bit_cast<T>(static_cast<Bits>(least[1][r] + 1));
      const bool is_zero = a == 0 || b == 0;
      if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(a * b)) return false;
      least[0][r] = is_zero ? ~Bits{0} : static_cast<Bits>(std::bit_cast<Bits>(low) - 1);
      most[0][r] = is_zero ? 0 : std::bit_cast<Bits>(a * b);
    }
    for (size_t r = 0; r < least[0].size(); ++r) {
      const size_t row = static_cast<size_t>(first) + r;
      least_[row] = least[0][r];
      most_[row] = most[0][r];
    }
    return true;
  }

  // All elements were seen of each row that was; they are seen once more (Tell) where the answer is yes.
  // `nonzero`: of the group's rows.
  bool Conclude(uint8_t* nonzero) {
    for (size_t r = 0; r < most_.size(); ++r) {
      if (most_[r] < std::bit_cast<Bits>(told_.least)) continue;
      nonzero[r] = 1;
      const T low = std::bit_cast<T>(static_cast<Bits>(least_[r] + 1));
      const T high = std::bit_cast<T>(most_[r]);
      if (low >= told_.least && high < told_.infinite) {
        smallest_ = std::min(smallest_, low);
        largest_ = std::max(largest_, high);
      } else {
        partly_told_.push_back(static_cast<int64_t>(r));
      }
    }
    return !partly_told_.empty();
  }
  // Rows of which some magnitudes are not told; NaN compares as neither.
  void Tell(const Tile<T>& tile) {
    for (const int64_t r : partly_told_) {
      for (int64_t e = 0; e < tile.count; ++e) {
        const T number = tile.numbers[e * tile.element_stride + r * tile.row_stride];
        const T magnitude = std::abs(number);
        if (!(magnitude >= told_.least && magnitude < told_.infinite)) continue;
        smallest_ = std::min(smallest_, magnitude);
        largest_ = std::max(largest_, magnitude);
      }
    }
  }
  T smallest() const { return smallest_; }
  T largest() const { return largest_; }

 private:
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const ToldMagnitudes<T> told_;
  std::vector<Bits> least_, most_;  // by row, as BoundRows leaves them
  std::vector<int64_t> partly_told_;
  T smallest_ = std::numeric_limits<T>::infinity();
  T largest_ = 0;
};

// Whether the sum of a piece is the plain tree over its rows: neither weights nor formats intervene.
template <class T>
bool BlockSums::IsSummedAsItIs(const Piece& piece) const {
  const Format format = sizeof(T) == 4 ? Format::kF32 : Format::kF64;
  return piece.is_dense && piece.all_ones && setting_.format == format &&
         setting_.accumulator == format;
}

template <class T>
void BlockSums::SumTile(const Piece& piece, const Tile<T>& tile, double* sums, WorkMeter& meter) {
  const Format format = setting_.format;
  const Format accumulator = setting_.accumulator;
  const size_t all = piece.end - piece.begin;
  const int64_t rows = static_cast<int64_t>(all);
  const bool is_plain =
      format == (sizeof(T) == 4 ? Format::kF32 : Format::kF64) &&
      (accumulator == Format::kF64 || (accumulator == Format::kF32 && format == Format::kF32));
  if (piece.is_dense && is_plain && tile.row_stride == 1) {
    const T* const from = tile.numbers + RowOf(piece, 0);
    const double* const weights = weights_.data() + piece.begin;
    if (accumulator == Format::kF64) {
      SumRows<double>(from, tile.element_stride, tile.count, rows, weights, piece.all_ones, sums);
    } else {
      SumRows<T>(from, tile.element_stride, tile.count, rows, weights, piece.all_ones, sums);
    }
    return;
  }
  std::vector<double> leaves(static_cast<size_t>(tile.count));
  precision::AlignedSum sum(leaves.size(), accumulator);
  for (size_t k = 0; k < all; ++k) {
    meter.Add(kNumberWork * tile.count);
    const T* const from = tile.numbers + RowOf(piece, k) * tile.row_stride;
    for (size_t e = 0; e < leaves.size(); ++e) {
      const double number =
          static_cast<double>(from[static_cast<int64_t>(e) * tile.element_stride]);
      leaves[e] = precision::Mul(format, weights_[piece.begin + k], number);
    }
    sum.Add(over_.ids[piece.begin + k], leaves);
  }
  const std::vector<double> root = sum.Take();
  std::copy(root.begin(), root.end(), sums);
}

// The runs of a piece's rows that adjoin in memory: calls with the first of each and its length.
template <class Run>
void BlockSums::EachRun(const Piece& piece, int64_t row_stride, const Run& run) const {
  const size_t all = piece.end - piece.begin;
  for (size_t begin = 0; begin < all;) {
    size_t end = begin + 1;
    if (piece.is_dense && row_stride == 1) end = all;
    while (end < all && row_stride == 1 && RowOf(piece, end) == RowOf(piece, end - 1) + 1) ++end;
    run(RowOf(piece, begin), static_cast<int64_t>(end - begin));
    begin = end;
  }
}

template <class T, class Source>
void BlockSums::GiveFrom(int64_t group, size_t which, int64_t entry, const Source& source,
                         WorkMeter& meter) {
  Group& to = groups_[static_cast<size_t>(group)];
  if (to.pieces.empty()) return;
  if (to.sums == nullptr) TakeMemory(to);
  const Wanted& wanted = wanted_[which];
  Seen& seen = seen_[which];
  const int64_t first_row = group * rows_of_group_;
  const int64_t rows =
      std::min(rows_of_group_, static_cast<int64_t>(over_.weights.size()) - first_row);
  Extremes<T> extremes(Told<T>(), rows);
  std::vector<size_t> by_tile;  // pieces
  const auto sums_of = [&](size_t p) {
    const size_t place = static_cast<size_t>(entry) * to.pieces.size() + p;
    return to.sums.get() + static_cast<int64_t>(place) * numbers_ + wanted.offset;
  };
  for (size_t p = 0; p < to.pieces.size(); ++p) {
    const Piece& piece = to.pieces[p];
    const int64_t count = static_cast<int64_t>(piece.end - piece.begin);
    meter.Add(kNumberWork * wanted.elements * (1 + count / 8));
    const bool is_done =
        IsSummedAsItIs<T>(piece) && source.SumAtOnce(RowOf(piece, 0), count, extremes, sums_of(p));
    if (!is_done) by_tile.push_back(p);
  }
  const auto each_tile = [&](const auto& use) {
    // Few enough that what is seen is in the nearest cache when it is summed.
    constexpr int64_t kAtOnce = 128;
    for (int64_t begin = 0; begin < wanted.elements; begin += kAtOnce) {
      use(begin, source.TileAt(begin, std::min(kAtOnce, wanted.elements - begin), meter));
    }
  };
  if (!by_tile.empty()) {
    each_tile([&](int64_t begin, const Tile<T>& tile) {
      for (const size_t p : by_tile) {
        const Piece& piece = to.pieces[p];
        EachRun(piece, tile.row_stride,
                [&](int64_t row, int64_t count) { extremes.See(tile, row, count); });
        SumTile(piece, tile, sums_of(p) + begin, meter);
      }
    });
  }
  if (extremes.Conclude(seen.nonzero.data() + first_row)) {
    each_tile([&](int64_t, const Tile<T>& tile) { extremes.Tell(tile); });
  }
  const std::scoped_lock lock(mutex_);
  seen.smallest = std::min(seen.smallest, static_cast<double>(extremes.smallest()));
  seen.largest = std::max(seen.largest, static_cast<double>(extremes.largest()));
}

// Numbers that lie in memory.
template <class T>
struct BlockSums::Cells {
  const T* numbers;
  int64_t element_stride, row_stride;

  Tile<T> TileAt(int64_t begin, int64_t count, WorkMeter&) const {
    return {numbers + begin * element_stride, element_stride, row_stride, count};
  }
  bool SumAtOnce(int64_t, int64_t, Extremes<T>&, double*) const { return false; }
};

template <class T>
void BlockSums::Give(int64_t group, size_t which, int64_t entry, const T* numbers,
                     int64_t element_stride, int64_t row_stride, WorkMeter& meter) {
  GiveFrom<T>(group, which, entry, Cells<T>{numbers, element_stride, row_stride}, meter);
}

// Numbers that are products of factors.
template <class T>
struct BlockSums::Products {
  const T* factors;
  int64_t rows, columns;
  int64_t group_rows;
  std::vector<T>& cells;  // of the last tile

  Tile<T> TileAt(int64_t begin, int64_t count, WorkMeter& meter) const {
    meter.Add(kNumberWork * count * (1 + group_rows / 8));
    cells.resize(static_cast<size_t>(count * group_rows));
    MultiplyRows(factors, rows, columns, group_rows, begin, count, cells.data());
    return {cells.data(), group_rows, 1, count};
  }
  // Rows [first, first + count) of the group, all of which count as they are.
  bool SumAtOnce(int64_t first, int64_t count, Extremes<T>& extremes, double* sums) const {
    return extremes.SeeProducts(factors, rows, columns, group_rows, first, count) &&
           SumProducts(factors + first, rows, columns, group_rows, count, sums);
  }
};

template <class T>
void BlockSums::GiveProduct(int64_t group, size_t which, int64_t entry, const T* factors,
                            int64_t rows, int64_t group_rows, WorkMeter& meter) {
  const int64_t columns = wanted_[which].elements / rows;
  std::vector<T> cells;
  GiveFrom<T>(group, which, entry, Products<T>{factors, rows, columns, group_rows, cells}, meter);
}
template void BlockSums::GiveProduct(int64_t, size_t, int64_t, const float*, int64_t, int64_t,
                                     WorkMeter&);
template void BlockSums::GiveProduct(int64_t, size_t, int64_t, const double*, int64_t, int64_t,
                                     WorkMeter&);

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
      if (--groups_[of].waiting == 0) spare_.push_back(std::move(groups_[of].sums));
    }
  }
}

void BlockSums::Join(Block& block, WorkMeter& meter) {
  const size_t width = static_cast<size_t>(numbers_);
  precision::AlignedSum sum(width, setting_.accumulator);
  if (block.total.empty()) ResizeInPieces(meter, block.total, width);
  for (int64_t entry = entries_; entry-- > 0;) {
    for (const PieceAt& at : block.pieces) {
      meter.Add(kNumberWork * numbers_);
      const Group& group = groups_[at.group];
      const size_t place = static_cast<size_t>(entry) * group.pieces.size() + at.piece;
      sum.Add(group.pieces[at.piece].node, std::span(group.sums.get() + place * width, width));
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
    // Memory is of the size that the largest needs.
    const int64_t own = group.pieces.empty() ? 0 : most_pieces_;
    largest = std::max(largest, own);
    held += own;
    most = std::max(most, held);
    for (size_t p = 0; p < group.pieces.size(); ++p) {
      const size_t of = group.pieces[p].block;
      if (p > 0 && group.pieces[p - 1].block == of) continue;
      if (--missing[of] > 0) continue;
      for (size_t member : blocks_[of].of_groups) {
        if (--waiting[member] == 0) held -= most_pieces_;
      }
    }
  }
  // A block that waits for a slow thread holds the others' next blocks back too.
  const int64_t per_block = (int64_t{1} << kLevel) / std::max<int64_t>(rows_of_group_, 1) + 2;
  const int64_t others = (threads - 1) * per_block * largest;
  int64_t all = 0;
  for (const Group& group : groups_) all += group.pieces.empty() ? 0 : most_pieces_;
  return 8 * numbers_ * std::min(all, most + others);
}

int64_t BlockSums::HeldBytes() const {
  constexpr int64_t kHeader = 32;  // of an allocation, and what is rounded up
  int64_t pieces = 0;
  for (const Block& block : blocks_) pieces += static_cast<int64_t>(block.pieces.size());
  const int64_t of_block = static_cast<int64_t>(sizeof(Block)) + 3 * kHeader + 8 * numbers_;
  // Lists that grow hold up to twice as much.
  const int64_t of_piece = 2 * static_cast<int64_t>(sizeof(Piece) + sizeof(PieceAt) + 8);
  const int64_t of_row = 4 * 8 + static_cast<int64_t>(seen_.size());
  return 2 * of_block * static_cast<int64_t>(blocks_.size()) + of_piece * pieces +
         static_cast<int64_t>(groups_.size()) * (static_cast<int64_t>(sizeof(Group)) + kHeader) +
         of_row * static_cast<int64_t>(over_.weights.size());
}

std::span<const double> BlockSums::Total(size_t block, size_t which) const {
  const std::vector<double>& total = blocks_[block].total;
  if (total.empty()) return {};
  return std::span(total).subspan(static_cast<size_t>(wanted_[which].offset),
                                  static_cast<size_t>(wanted_[which].elements));
}

std::vector<precision::AlignedNode> BlockSums::Totals(size_t which) const {
  std::vector<precision::AlignedNode> nodes;
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const std::span<const double> total = Total(block, which);
    nodes.push_back({{kLevel, NumberOf(block)}, {total.begin(), total.end()}});
    nodes.back().values.resize(static_cast<size_t>(wanted_[which].elements));
  }
  return nodes;
}

GradientMagnitudes BlockSums::Magnitudes(size_t which) const {
  const Seen& seen = seen_[which];
  GradientMagnitudes magnitudes;
  for (size_t row : over_.rows) magnitudes.zero += seen.nonzero[row] == 0 ? 1 : 0;
  if (seen.largest == 0.0) return magnitudes;
  const float inverse = precision::InverseLossScale(loss_scale_);
  magnitudes.smallest = precision::Unscale(setting_.format, seen.smallest, inverse);
  magnitudes.largest = precision::Unscale(setting_.format, seen.largest, inverse);
  return magnitudes;
}

}  // namespace simgrad::sim
