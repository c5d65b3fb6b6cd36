// Operations on arrays and linear algebra against NumPy (tests/data/numpy_arrays.py), and on what NumPy refuses.
#include <cmath>
#include <limits>

#include "sim/op/op_info.h"
#include "tests/sim/backend/reference/one_step.h"
#include "tests/sim/json.h"
#include "tests/source_tree.h"

namespace simgrad::sim {
namespace {

using tests::FinalState;
using tests::Json;
using tests::RunProgram;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Operand {
  Shape shape;
  std::vector<double> values;
  bool integer = false;
};

Shape ShapeOf(const Json& json) {
  Shape shape;
  for (const Json& n : json.items) shape.push_back(static_cast<int64_t>(n.Number()));
  return shape;
}

Operand OperandOf(const Json& json) {
  Operand operand{ShapeOf(json["shape"]), {}, json["element"].text == "i32"};
  for (const Json& x : json["values"].items) operand.values.push_back(x.Hex());
  return operand;
}

Attributes AttributesOf(const Json& json) {
  Attributes a;
  const auto list = [&](const char* name, std::vector<int64_t>& to) {
    if (json.Has(name)) to = ShapeOf(json[name]);
  };
  list("axes", a.axes);
  list("start", a.start);
  list("shape", a.shape);
  list("dims", a.dims);
  list("stride", a.dims);
  list("interior", a.dims);
  list("indices", a.start);
  if (json.Has("fill")) a.literal = {json["fill"].Number()};
  if (json.Has("bounds")) a.bounds = *BoundsFromName(json["bounds"].text);
  if (json.Has("combine")) a.combine = *CombineFromName(json["combine"].text);
  a.upper = json.Has("upper") && json["upper"].IsTrue();
  a.transposed = json.Has("transposed") && json["transposed"].IsTrue();
  a.unit = json.Has("unit") && json["unit"].IsTrue();
  return a;
}

// The result as reals; operands of reals are states, those of integers literals.
std::vector<double> Computed(OpCode code, const std::vector<Operand>& operands,
                             const Attributes& attributes, const Shape& result,
                             const std::string& preset = "f64") {
  tests::Setting setting;
  setting.policy = tests::Preset(preset);
  for (const Operand& operand : operands) {
    if (!operand.integer) setting.states.push_back(operand.values);
  }
  setting.states.push_back(std::vector<double>(static_cast<size_t>(ElementCount(result)), 0.0));
  const size_t last = setting.states.size() - 1;
  return FinalState(
      RunProgram(setting,
                 [&](Builder& b) {
                   Vars given;
                   Vars next;
                   for (const Operand& operand : operands) {
                     if (operand.integer) {
                       std::vector<double> places = operand.values;
                       if (places.empty()) places = {0.0};
                       given.push_back(b.IntegerArray(places, operand.shape));
                     } else {
                       given.push_back(b.State("s" + std::to_string(next.size()), operand.shape));
                       next.push_back(given.back());
                     }
                   }
                   b.State("y", result);
                   next.push_back(b.Convert(b.Do(code, given, attributes), ElementType::kReal));
                   b.SetNext(next);
                 }),
      last);
}

TEST(ArrayOperation, GivesWhatNumPyGives) {
  const Json file = tests::ReadJsonFile(tests::TestData("numpy_arrays.json"));
  ASSERT_GT(file["cases"].items.size(), 40u);
  for (const Json& row : file["cases"].items) {
    std::vector<Operand> operands;
    for (const Json& operand : row["operands"].items) operands.push_back(OperandOf(operand));
    const Operand expected = OperandOf(row["result"]);
    const std::string& name = row["name"].text;
    const std::vector<double> actual = Computed(*OpFromName(row["code"].text), operands,
                                                AttributesOf(row["attributes"]), expected.shape);
    ASSERT_EQ(actual.size(), expected.values.size()) << name;
    const double tolerance = row["tolerance"].Number();
    double scale = 0.0;
    for (double x : expected.values) scale = std::max(scale, std::abs(x));
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_LE(std::abs(actual[i] - expected.values[i]), tolerance * scale)
          << name << " element " << i << ": " << actual[i] << ", not " << expected.values[i];
    }
  }
}

// ---- What NumPy refuses: numbers that follow from docs/numerics.md section 10 ----

void ExpectNumbers(const std::vector<double>& actual, const std::vector<double>& expected,
                   const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const bool same =
        std::isnan(expected[i])
            ? std::isnan(actual[i])
            : actual[i] == expected[i] && std::signbit(actual[i]) == std::signbit(expected[i]);
    EXPECT_TRUE(same) << what << " element " << i << ": " << actual[i];
  }
}

TEST(ArrayOperation, CholeskyIsNanFromAPivotThatIsNotPositiveOn) {
  const Operand a = {{3, 3}, {4, kNan, kNan, 2, 1, kNan, 6, 5, 9}};
  // The second pivot is 1 - 1 1 = 0; what is above the diagonal is not read.
  ExpectNumbers(Computed(OpCode::kCholesky, {a}, {}, {3, 3}), {2, 0, 0, 1, kNan, 0, 3, kNan, kNan},
                "a pivot of zero");
  ExpectNumbers(Computed(OpCode::kCholesky, {{{1, 1}, {-1}}}, {}, {1, 1}), {kNan}, "a negative");
  ExpectNumbers(Computed(OpCode::kCholesky, {{{0, 0}, {}}}, {}, {0, 0}), {}, "nothing");
}

TEST(ArrayOperation, LuOfSingularMatricesHasMultipliersOfZero) {
  const Operand zero = {{2, 2}, {0, 3, 0, 5}};
  ExpectNumbers(Computed(OpCode::kLu, {zero}, {}, {2, 2}), {0, 3, 0, 5}, "a column of zeros");
  ExpectNumbers(Computed(OpCode::kLuPermutation, {zero}, {}, {2}), {0, 1}, "its rows");
  const Operand b = {{2, 1}, {1, 1}};
  const std::vector<double> x = Computed(OpCode::kSolve, {zero, b}, {}, {2, 1});
  EXPECT_FALSE(std::isfinite(x[0]));
}

TEST(ArrayOperation, LuTakesTheFirstNanAsThePivot) {
  const Operand a = {{3, 3}, {9, 0, 0, kNan, 1, 0, kNan, 0, 1}};
  ExpectNumbers(Computed(OpCode::kLuPermutation, {a}, {}, {3}), {1, 0, 2}, "rows");
  const Operand equal = {{2, 2}, {-3, 1, 3, 1}};
  ExpectNumbers(Computed(OpCode::kLuPermutation, {equal}, {}, {2}), {0, 1}, "of equals the first");
  ExpectNumbers(Computed(OpCode::kLu, {equal}, {}, {2, 2}), {-3, 1, -1, 2}, "factors");
}

TEST(ArrayOperation, TriangularSolveDividesByZeroAsIeeeDoes) {
  const Operand t = {{2, 2}, {0, 7, 1, 2}};
  const Operand b = {{2, 1}, {3, 4}};
  ExpectNumbers(Computed(OpCode::kTriangularSolve, {t, b}, {}, {2, 1}), {kInf, -kInf}, "a zero");
}

TEST(ArrayOperation, NormsOfZeroInfinityAndNan) {
  const Attributes axes{.axes = {0}};
  ExpectNumbers(Computed(OpCode::kNorm2, {{{2}, {0, -0.0}}}, axes, {}), {0.0}, "zeros");
  ExpectNumbers(Computed(OpCode::kNorm2, {{{2}, {1, -kInf}}}, axes, {}), {kInf}, "infinity");
  ExpectNumbers(Computed(OpCode::kNorm2, {{{2}, {kNan, kInf}}}, axes, {}), {kNan}, "NaN");
  // Squares of 3 and 4 times 2^14 overflow f16.
  ExpectNumbers(Computed(OpCode::kNorm2, {{{2}, {3 * 4096, 4 * 4096}}}, axes, {}, "f16_unsafe"),
                {5 * 4096}, "in f16");
}

TEST(ArrayOperation, ScatteredExtremesTakeNan) {
  const Attributes how{.axes = {0}, .bounds = Bounds::kDrop, .combine = Combine::kMax};
  const Operand places = {{2}, {0, 1}, true};
  ExpectNumbers(Computed(OpCode::kScatter, {{{2}, {kNan, 1}}, places, {{2}, {5, kNan}}}, how, {2}),
                {kNan, kNan}, "max");
}

TEST(ArrayOperation, AChainOfANarrowAccumulatorRoundsTheProductAndTheSum) {
  // 1 + 2^-11 2^-11 in f16: fma and two roundings agree; 3 (683/2048) + 2^-24 does not.
  const Operand a = {{1, 2}, {1, 3}};
  const Operand b = {{2, 1}, {0x1p-24, 683.0 / 2048}};
  // 2^-24, then 3 * 683/2048 = 1.00048828125 -> 1 in f16 (a tie, to even), and 1 + 2^-24 = 1.
  ExpectNumbers(Computed(OpCode::kMatmul, {a, b}, {}, {1, 1}, "f16_unsafe"), {1.0}, "f16");
}

// ---- Errors by field ----

std::string Refusal(OpCode code, const std::vector<Type>& operands, Attributes attributes) {
  Program program;
  Op op;
  op.code = code;
  op.attributes = std::move(attributes);
  for (const Type& type : operands) op.operands.push_back(program.AddValue(type));
  op.results = {program.AddValue({ElementType::kI32, op.attributes.shape})};
  const Types types = ResultTypes(program, op);
  return types.ok() ? "" : std::string(types.status().message());
}

TEST(ArrayOperation, ErrorsNameAField) {
  const Type x{ElementType::kReal, {4, 5}};
  const Type i{ElementType::kI32, {3}};
  const std::vector<std::pair<std::string, std::string>> rows = {
      {Refusal(OpCode::kSlice, {x}, {.start = {0, 0}, .shape = {2, 3}, .dims = {4, 2}}), "start"},
      {Refusal(OpCode::kSlice, {x}, {.start = {0, 0}, .shape = {2, 3}, .dims = {0, 1}}), "stride"},
      {Refusal(OpCode::kPad, {x}, {.start = {0, 0}, .shape = {4, 5}, .dims = {1, 0}}), "start"},
      {Refusal(OpCode::kPad, {x}, {.literal = {kInf}, .start = {0, 0}, .shape = {4, 5}}), "fill"},
      {Refusal(OpCode::kTranspose, {x}, {.dims = {0, 0}}), "dims"},
      {Refusal(OpCode::kTake, {x}, {.start = {0, 20}, .shape = {2}}), "indices"},
      {Refusal(OpCode::kTake, {x}, {.start = {0}, .shape = {2}}), "indices"},
      {Refusal(OpCode::kIota, {}, {.axes = {1}, .shape = {2}}), "axes"},
      {Refusal(OpCode::kGather, {x, i}, {.axes = {2}, .bounds = Bounds::kClip}), "axes"},
      {Refusal(OpCode::kGather, {x, i}, {.axes = {0}, .bounds = Bounds::kDrop}), "bounds"},
      {Refusal(OpCode::kGather, {x, i}, {.literal = {7}, .axes = {0}, .bounds = Bounds::kClip}),
       "fill"},
      {Refusal(OpCode::kGather, {{ElementType::kReal, {0}}, i},
               {.axes = {0}, .bounds = Bounds::kClip}),
       "bounds"},
      {Refusal(OpCode::kGather, {x, x}, {.axes = {0}, .bounds = Bounds::kClip}), "operands[1]"},
      {Refusal(OpCode::kScatter, {x, i, x},
               {.axes = {0}, .bounds = Bounds::kDrop, .combine = Combine::kAdd}),
       "operands[2]"},
      {Refusal(OpCode::kScatter, {x, i, {ElementType::kReal, {3, 5}}},
               {.axes = {0}, .bounds = Bounds::kDrop, .combine = Combine::kNone}),
       "combine"},
      {Refusal(OpCode::kDynamicSlice, {x, i}, {.shape = {1, 1}}), "operands[1]"},
      {Refusal(OpCode::kUpdate, {x, {ElementType::kReal, {5, 5}}, {ElementType::kI32, {2}}}, {}),
       "operands[1]"},
      {Refusal(OpCode::kArgsort, {x, i}, {.axes = {0}}), "operands[1]"},
      {Refusal(OpCode::kMatmul, {x, x}, {}), "operands[1]"},
      {Refusal(OpCode::kCholesky, {x}, {}), "operands[0]"},
      {Refusal(OpCode::kTriangularSolve,
               {{ElementType::kReal, {4, 4}}, {ElementType::kReal, {5, 1}}}, {}),
       "operands[1]"},
      {Refusal(OpCode::kLu, {{ElementType::kReal, {2, 4, 4}}}, {}), "operands[0]"},
      {Refusal(OpCode::kNorm2, {x}, {.axes = {1, 0}}), "axes"},
  };
  for (size_t k = 0; k < rows.size(); ++k) {
    EXPECT_EQ(rows[k].first.rfind(rows[k].second, 0), 0u) << k << ": '" << rows[k].first << "'";
  }
}

}  // namespace
}  // namespace simgrad::sim
