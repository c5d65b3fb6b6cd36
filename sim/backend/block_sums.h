// Sums over instances of what a reversal gives to params declared `weights`, entry by entry: an
// instance has no gradient of its own of them, so none is held.
//
// Maths: docs/numerics.md section 6. An entry is the terminal cost, a step, or `initial`; in each,
//   instance i gives numbers c[i], accumulated from +0. The sum of an entry over an aligned block of
//   256 ids is that of round(weight[i] * c[i]) over its instances that count, in the pairwise tree
//   aligned to the ids, in the accumulator of role gradient, rounded to the role. A block's total
//   grows by it, round(total + sum), in the order of the calls of Open and, inside one, from the
//   last entry to the first.
// Accuracy: as said; the same bits for every order of rows and groups, and every cut into Opens.
// Errors: none; the meters may end it (StopRequested). Memory: totals of all blocks; after Open, sums
//   of groups whose blocks wait for other groups.
// Threads: Give and Ended for different groups from different threads; the rest from one.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "precision/aligned_sum.h"
#include "precision/policy.h"
#include "sim/backend/instance_weights.h"
#include "sim/program/numerical_program.h"
#include "sim/work_meter.h"

namespace simgrad::sim {

// The gradients of one input over the instances that count, before weights and loss scale.
struct GradientMagnitudes {
  int64_t zero = 0;  // instances whose gradient is 0 everywhere
  // The extremes of the finite numbers that are not 0; +inf and 0 if there is none.
  double smallest = std::numeric_limits<double>::infinity();
  double largest = 0.0;
};

class BlockSums {
 public:
  static constexpr int kLevel = 8;  // a block is 2^8 ids

  // An input that is summed here.
  struct Wanted {
    int32_t input = -1;
    int64_t elements = 0;
    int64_t offset = 0;  // of its numbers among those of all inputs
  };
  static std::vector<Wanted> WantedOf(const NumericalProgram& program);

  // `over`: the instances of rows [0, over.weights.size()). Rows are given in groups: those from
  // group * rows_of_group on. `loss_scale`: that of the cotangents.
  BlockSums(const NumericalProgram& program, InstanceWeights over, int64_t rows_of_group,
            double loss_scale, WorkMeter& meter);

  const std::vector<Wanted>& wanted() const { return wanted_; }

  // Begins `entries` entries; each group gives all of them and is then Ended.
  void Open(int64_t entries);
  // The numbers that the rows of `group` gave to wanted()[which] in `entry`: number e of the r-th of
  // them at numbers[e * element_stride + r * row_stride]. T: float or double, values of role gradient.
  template <class T>
  void Give(int64_t group, size_t which, int64_t entry, const T* numbers, int64_t element_stride,
            int64_t row_stride, WorkMeter& meter);
  // The same of an outer product (plan::OuterProduct): the r-th row gave cells (a, b), b fastest, the
  // products of its factors a and rows + b, rounded, from +0: factor k at factors[k * group_rows + r].
  template <class T>
  void GiveProduct(int64_t group, size_t which, int64_t entry, const T* factors, int64_t rows,
                   int64_t group_rows, WorkMeter& meter);
  void Ended(int64_t group, WorkMeter& meter);

  // Results come instead of Open, Give and Ended where the numbers are summed elsewhere, in the order
  // of OrderOf. `totals`: [block][number of the input]; `nonzero`: by row, whether any number
  // is not 0 without the loss scale; `smallest`, `largest`: of the magnitudes in ToldMagnitudes, +inf and 0 if there is none.
  void Put(size_t which, std::span<const double> totals, std::vector<uint8_t> nonzero,
           double smallest, double largest);
  // The magnitudes that count among the smallest and largest: [least, infinite), above 0. T: as Give.
  template <class T>
  struct ToldMagnitudes {
    T least, infinite;
  };
  template <class T>
  ToldMagnitudes<T> Told() const;

  // The most bytes of sums that wait, per entry, where groups come in ascending order and up to
  // `threads` at once.
  int64_t BytesPerEntry(int threads) const;
  // The bytes of the rest: totals, and what is known of rows, groups and blocks.
  int64_t HeldBytes() const;
  size_t blocks() const { return blocks_.size(); }

  // The blocks that hold an instance that counts, ascending, as nodes over the numbers of the input:
  // their totals.
  std::vector<precision::AlignedNode> Totals(size_t which) const;
  // The same one by one, without a copy; an empty total is +0.
  uint64_t NumberOf(size_t block) const { return blocks_[block].number; }
  std::span<const double> Total(size_t block, size_t which) const;
  // The magnitudes of what instances that count gave in single entries.
  GradientMagnitudes Magnitudes(size_t which) const;

 private:
  // The rows of one group whose sum is a node of a block's tree.
  struct Piece {
    size_t block = 0;
    precision::AlignedBlock node;
    size_t begin = 0, end = 0;  // of its ids among those of `over_`
    bool all_ones = true;
    bool is_dense = false;  // all ids of the node, in adjoining rows
  };
  struct Group {
    std::vector<Piece> pieces;
    std::unique_ptr<double[]> sums;  // [entry][piece][number]; from the first Give on
    int waiting = 0;                 // its blocks that are not joined yet
  };
  struct PieceAt {
    size_t group = 0, piece = 0;
  };
  struct Block {
    uint64_t number = 0;            // ids >> kLevel
    std::vector<PieceAt> pieces;    // ascending by id
    std::vector<size_t> of_groups;  // distinct
    size_t missing = 0;             // groups that have not ended
    std::vector<double> total;      // by number
  };
  // The numbers that were given to one input.
  struct Seen {
    std::vector<uint8_t> nonzero;  // by row
    double smallest = std::numeric_limits<double>::infinity(), largest = 0.0;
  };

  void TakeMemory(Group& group);
  void MakePieces(WorkMeter& meter);
  void MakePiece(const precision::AlignedBlock& node, size_t begin, size_t end, size_t block,
                 WorkMeter& meter);
  // The k-th row of a piece, counted from the first of its group.
  int64_t RowOf(const Piece& piece, size_t k) const {
    return static_cast<int64_t>(over_.rows[piece.begin + k] % static_cast<size_t>(rows_of_group_));
  }
  void Join(Block& block, WorkMeter& meter);
  template <class T>
  class Extremes;
  // The numbers of some elements that a group's rows gave: number e of the r-th row at
  // numbers[e * element_stride + r * row_stride].
  template <class T>
  struct Tile {
    const T* numbers;
    int64_t element_stride, row_stride;
    int64_t count;  // of elements
  };
  template <class Run>
  void EachRun(const Piece& piece, int64_t row_stride, const Run& run) const;
  template <class T>
  struct Cells;
  template <class T>
  struct Products;
  // `source`: Cells or Products.
  template <class T, class Source>
  void GiveFrom(int64_t group, size_t which, int64_t entry, const Source& source, WorkMeter& meter);
  template <class T>
  bool IsSummedAsItIs(const Piece& piece) const;
  // Sums a tile over the rows of a piece.
  template <class T>
  void SumTile(const Piece& piece, const Tile<T>& tile, double* sums, WorkMeter& meter);

  const precision::RoleSetting setting_;
  const double loss_scale_;
  const InstanceWeights over_;
  const int64_t rows_of_group_;
  std::vector<double> weights_;  // as over_.ids
  std::vector<Wanted> wanted_;
  int64_t numbers_ = 0;  // of all inputs
  // The least magnitudes that are not 0, and that are infinite, without the scale.
  double least_told_ = 0.0, least_infinite_ = 0.0;
  std::vector<Group> groups_;
  std::vector<Block> blocks_;
  std::vector<Seen> seen_;  // by input
  int64_t entries_ = 0;
  // Memory that groups are done with, of the size that the largest group needs.
  std::vector<std::unique_ptr<double[]>> spare_;
  int64_t most_pieces_ = 0;  // of a group
  std::mutex mutex_;         // of counts of what is missing, and of extremes
};

// How the rows of blocks are summed one after another on a stack. A row is pushed; then, `joins`
// times, the two topmost numbers give way to their sum. The last row of a block leaves one number.
struct BlockOrder {
  static constexpr int kDepth = BlockSums::kLevel + 1;  // numbers on the stack at most

  std::vector<size_t> begin;   // [blocks + 1]: of a block's rows among InstanceWeights::rows
  std::vector<uint8_t> joins;  // by place there
};
BlockOrder OrderOf(const InstanceWeights& over);

}  // namespace simgrad::sim
