// Worlds whose states become what operations of integers give, beside what C++ says of each.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/backend/executor.h"
#include "sim/op/op_info.h"
#include "sim/program/builder.h"
#include "tests/sim/work_maker.h"

namespace simgrad::tests {

template <class T>
constexpr sim::ElementType kElementOf = std::is_same_v<T, int32_t>    ? sim::ElementType::kI32
                                        : std::is_same_v<T, int64_t>  ? sim::ElementType::kI64
                                        : std::is_same_v<T, uint32_t> ? sim::ElementType::kU32
                                                                      : sim::ElementType::kU8;

struct IntegerResult {
  std::string name;
  sim::Type type;
  std::function<sim::Var(sim::Builder& b, sim::Var x, sim::Var y)> write;
  std::vector<int64_t> expected;
};

// What operations give of pairs of integers: C++ computes it in T, or in 64 bits where T is
// narrower.
template <class T>
class IntegerResults {
 public:
  using Pair = std::function<int64_t(T a, T b)>;

  IntegerResults() {
    for (const int64_t first : kNumbers) {
      for (const int64_t second : kNumbers) {
        a_.push_back(static_cast<T>(first));
        b_.push_back(static_cast<T>(second));
      }
    }
    Bits();
    Comparisons();
    Conversions();
    if constexpr (sizeof(T) < 8) Arithmetic();
    Reductions();
  }
  const std::vector<T>& a() const { return a_; }
  const std::vector<T>& b() const { return b_; }
  const std::vector<IntegerResult>& results() const { return results_; }

 private:
  using U = std::make_unsigned_t<T>;
  static constexpr int kBits = 8 * sizeof(T);
  static constexpr int64_t kNumbers[] = {
      0,  1,  2,  3,          7,          8,          31,  32,  33,  100,       255,      256,
      -1, -2, -7, 0x7FFFFFFF, 0x80000000, 0x80000001, 127, 128, 129, INT64_MAX, INT64_MIN};
  static constexpr int64_t kCount = std::size(kNumbers);

  // Wraps to T.
  void Add(sim::OpCode code, const Pair& pair, int operands = 2,
           sim::ElementType type = kElementOf<T>) {
    std::vector<int64_t> expected;
    for (size_t i = 0; i < a_.size(); ++i) {
      const int64_t n = pair(a_[i], b_[i]);
      expected.push_back(type == kElementOf<T> ? static_cast<T>(n) : n);
    }
    results_.push_back({std::string(sim::InfoOf(code).name),
                        {type, {kCount * kCount}},
                        [=](sim::Builder& b, sim::Var x, sim::Var y) {
                          return b.Apply(code, operands == 2 ? sim::Vars{x, y} : sim::Vars{x});
                        },
                        expected});
  }

  void Bits() {
    using enum sim::OpCode;
    const auto is_within = [](T b) { return b >= 0 && b < static_cast<T>(kBits); };
    Add(kAnd, [](T a, T b) { return static_cast<T>(a & b); });
    Add(kOr, [](T a, T b) { return static_cast<T>(a | b); });
    Add(kXor, [](T a, T b) { return static_cast<T>(a ^ b); });
    Add(
        kNot, [](T a, T) { return static_cast<T>(~a); }, 1);
    Add(kShl, [=](T a, T b) { return is_within(b) ? static_cast<T>(static_cast<U>(a) << b) : 0; });
    Add(kShr, [=](T a, T b) {
      if (is_within(b)) return static_cast<int64_t>(static_cast<T>(a >> b));
      return int64_t{a < 0 ? -1 : 0};
    });
  }

  void Comparisons() {
    using enum sim::OpCode;
    constexpr sim::ElementType kBool = sim::ElementType::kBool;
    Add(
        kLt, [](T a, T b) { return a < b; }, 2, kBool);
    Add(
        kLe, [](T a, T b) { return a <= b; }, 2, kBool);
    Add(
        kGt, [](T a, T b) { return a > b; }, 2, kBool);
    Add(
        kGe, [](T a, T b) { return a >= b; }, 2, kBool);
    Add(
        kEq, [](T a, T b) { return a == b; }, 2, kBool);
    Add(
        kNe, [](T a, T b) { return a != b; }, 2, kBool);
    Add(kMin, [](T a, T b) { return std::min(a, b); });
    Add(kMax, [](T a, T b) { return std::max(a, b); });
  }

  template <class To>
  void Convert(sim::ElementType type) {
    std::vector<int64_t> expected;
    for (const T n : a_) expected.push_back(static_cast<To>(n));
    results_.push_back({"to " + std::string(sim::ElementTypeName(type)),
                        {type, {kCount * kCount}},
                        [=](sim::Builder& b, sim::Var x, sim::Var) { return b.Convert(x, type); },
                        expected});
  }

  void Conversions() {
    Convert<int32_t>(sim::ElementType::kI32);
    Convert<int64_t>(sim::ElementType::kI64);
    Convert<uint32_t>(sim::ElementType::kU32);
    Convert<uint8_t>(sim::ElementType::kU8);
    Convert<bool>(sim::ElementType::kBool);
    Convert<T>(sim::ElementType::kReal);
  }

  // In 64 bits nothing overflows but a product of two u32, which wraps modulo 2^64.
  void Arithmetic() {
    using enum sim::OpCode;
    const auto floored = [](int64_t a, int64_t b) {
      const int64_t quotient = a / b;
      return quotient * b != a && (a < 0) != (b < 0) ? quotient - 1 : quotient;
    };
    Add(kAdd, [](int64_t a, int64_t b) { return a + b; });
    Add(kSub, [](int64_t a, int64_t b) { return a - b; });
    Add(kMul, [](int64_t a, int64_t b) {
      return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    });
    Add(kDiv, [=](int64_t a, int64_t b) { return b == 0 ? 0 : floored(a, b); });
    Add(kMod, [=](int64_t a, int64_t b) { return b == 0 ? 0 : a - b * floored(a, b); });
    Add(kQuot, [](int64_t a, int64_t b) { return b == 0 ? -1 : a / b; });
    Add(kRem, [](int64_t a, int64_t b) { return b == 0 ? a : a % b; });
    Add(
        kNeg, [](int64_t a, int64_t) { return -a; }, 1);
    Add(
        kAbs, [](int64_t a, int64_t) { return a < 0 ? -a : a; }, 1);
    Add(
        kSign, [](int64_t a, int64_t) { return a > 0   ? 1
                                               : a < 0 ? -1
                                                       : 0; }, 1);
  }

  // Over the rows of the square of a xor b; `of` gets one row.
  void Reduce(sim::OpCode code, sim::ElementType type,
              const std::function<int64_t(const std::vector<T>& row)>& of) {
    std::vector<int64_t> expected;
    for (size_t i = 0; i < a_.size(); i += kCount) {
      std::vector<T> row;
      for (size_t k = i; k < i + kCount; ++k) row.push_back(static_cast<T>(a_[k] ^ b_[k]));
      const int64_t n = of(row);
      expected.push_back(type == kElementOf<T> ? static_cast<T>(n) : n);
    }
    results_.push_back(
        {std::string(sim::InfoOf(code).name),
         {type, {kCount}},
         [=](sim::Builder& b, sim::Var x, sim::Var y) {
           const sim::Var square = b.Reshape(b.Apply(sim::OpCode::kXor, {x, y}), {kCount, kCount});
           return b.Reduce(code, square, {1});
         },
         expected});
  }

  void Reductions() {
    using enum sim::OpCode;
    const auto fold = [](bool multiplies) {
      return [=](const std::vector<T>& row) {
        uint64_t total = multiplies ? 1 : 0;
        for (const T n : row) {
          total = multiplies ? total * static_cast<uint64_t>(n) : total + static_cast<uint64_t>(n);
        }
        return static_cast<int64_t>(total);
      };
    };
    Reduce(kSum, kElementOf<T>, fold(false));
    Reduce(kProd, kElementOf<T>, fold(true));
    const auto largest = [](const auto& row) { return std::max_element(row.begin(), row.end()); };
    const auto smallest = [](const auto& row) { return std::min_element(row.begin(), row.end()); };
    Reduce(kReduceMax, kElementOf<T>, [=](const auto& row) { return *largest(row); });
    Reduce(kReduceMin, kElementOf<T>, [=](const auto& row) { return *smallest(row); });
    constexpr sim::ElementType kPlace = sim::ElementType::kI32;
    Reduce(kArgmax, kPlace, [=](const auto& row) { return largest(row) - row.begin(); });
    Reduce(kArgmin, kPlace, [=](const auto& row) { return smallest(row) - row.begin(); });
    Add(kXor, [](T a, T b) { return static_cast<T>(a ^ b); });
    IntegerResult& sums = results_.back();
    sums.name = "cumsum";
    sums.write = [](sim::Builder& b, sim::Var x, sim::Var) { return b.Cumsum(x, 0); };
    U total = 0;
    for (size_t i = 0; i < a_.size(); ++i) {
      total = static_cast<U>(total + static_cast<U>(a_[i]));
      sums.expected[i] = static_cast<T>(total);
    }
  }

  std::vector<T> a_, b_;
  std::vector<IntegerResult> results_;
};

// One step of a world with the states x, y and one for each result, which hold them then.
inline std::vector<sim::Tensor> ResultsOn(const std::shared_ptr<sim::Executor>& executor,
                                          const sim::Type& type, const std::vector<sim::Tensor>& xy,
                                          const std::vector<IntegerResult>& results) {
  sim::Builder b("integers");
  const sim::Var x = b.State("x", type.shape, "", type.element);
  const sim::Var y = b.State("y", type.shape, "", type.element);
  sim::Vars next = {x, y};
  for (size_t k = 0; k < results.size(); ++k) {
    b.State("r" + std::to_string(k), results[k].type.shape, "", results[k].type.element);
  }
  for (const IntegerResult& result : results) next.push_back(result.write(b, x, y));
  b.SetNext(next);
  const auto world = b.Finish();
  EXPECT_TRUE(world.ok()) << world.status();
  auto program = LowerForGradient(*world, PolicyOf({.preset = "f64"}), "");
  EXPECT_TRUE(program.ok()) << program.status();
  sim::Work work = WorkOf(*std::move(program), 2, 1);
  for (size_t k = 0; k < work.batch.inputs.size(); ++k) {
    work.batch.inputs[k] = k < 2 ? sim::Binding{xy[k], false, false}
                                 : Shared(std::vector<double>(static_cast<size_t>(
                                              sim::ElementCount(results[k - 2].type.shape))),
                                          results[k - 2].type.shape);
  }
  sim::Observer observer;
  auto result = sim::Engine(executor).Execute(std::move(work), observer);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->final_states : std::vector<sim::Tensor>();
}

inline void ExpectResults(const std::vector<sim::Tensor>& states,
                          const std::vector<IntegerResult>& results) {
  ASSERT_EQ(states.size(), results.size() + 2);
  for (size_t k = 0; k < results.size(); ++k) {
    const sim::Tensor& tensor = states[k + 2];
    const size_t count = results[k].expected.size();
    int wrong = 0;
    for (size_t i = 0; i < 2 * count && wrong < 3; ++i) {  // of both instances
      const int64_t expected = results[k].expected[i % count];
      const int64_t at = static_cast<int64_t>(i);
      const bool is_real = results[k].type.element == sim::ElementType::kReal;
      const bool is_right =
          is_real ? tensor.Get(at) == static_cast<double>(expected) : tensor.GetInt(at) == expected;
      if (is_right) continue;
      ++wrong;
      ADD_FAILURE() << results[k].name << " of element " << i % count << " gives " << tensor.Get(at)
                    << ", not " << expected;
    }
  }
}

template <class T>
void ExpectIntegers(const std::shared_ptr<sim::Executor>& executor) {
  const IntegerResults<T> of;
  const sim::Type type{kElementOf<T>, {static_cast<int64_t>(of.a().size())}};
  // Wider than the state: what is sent wraps.
  std::vector<sim::Tensor> xy(2, sim::Tensor::Zeros(sim::DType::kI64, type.shape));
  for (size_t i = 0; i < of.a().size(); ++i) {
    xy[0].SetInt(static_cast<int64_t>(i), of.a()[i]);
    xy[1].SetInt(static_cast<int64_t>(i), of.b()[i]);
  }
  ExpectResults(ResultsOn(executor, type, xy, of.results()), of.results());
}

// Reals to integers: toward zero, saturating, NaN to 0.
inline void ExpectConvertedReals(const std::shared_ptr<sim::Executor>& executor) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> x = {std::nan(""), infinity, 0.0,    -0.0,  0.5,        0.999, 1.0,
                           127.5,        128.0,    255.0,  255.5, 256.0,      300.0, 0x1p31,
                           0x1p31 - 0.5, 0x1p32,   0x1p63, 1e300, 4294967295, 5e-324};
  x.push_back(0x1p32 - 0.5);
  for (size_t i = x.size(); i-- > 1;) x.push_back(-x[i]);
  const sim::Type type{sim::ElementType::kReal, {static_cast<int64_t>(x.size())}};
  std::vector<IntegerResult> results;
  const auto add = [&](sim::ElementType to, int64_t least, int64_t most) {
    std::vector<int64_t> expected;
    for (const double n : x) {
      expected.push_back(std::isnan(n)                     ? 0
                         : n >= static_cast<double>(most)  ? most
                         : n <= static_cast<double>(least) ? least
                                                           : static_cast<int64_t>(n));
    }
    const auto write = [=](sim::Builder& b, sim::Var real, sim::Var) {
      return b.Convert(real, to);
    };
    results.push_back(
        {"to " + std::string(sim::ElementTypeName(to)), {to, type.shape}, write, expected});
  };
  add(sim::ElementType::kI32, INT32_MIN, INT32_MAX);
  add(sim::ElementType::kI64, INT64_MIN, INT64_MAX);
  add(sim::ElementType::kU32, 0, UINT32_MAX);
  add(sim::ElementType::kU8, 0, UINT8_MAX);
  const sim::Tensor sent = Doubles(x, type.shape);
  ExpectResults(ResultsOn(executor, type, {sent, sent}, results), results);
}

inline void ExpectIntegersOn(const std::shared_ptr<sim::Executor>& executor) {
  ExpectIntegers<int32_t>(executor);
  ExpectIntegers<int64_t>(executor);
  ExpectIntegers<uint32_t>(executor);
  ExpectIntegers<uint8_t>(executor);
  ExpectConvertedReals(executor);
}

}  // namespace simgrad::tests
