// How soon a request ends that is read and made into work: whether it is to end is asked about in
// every pass over its numbers, and their memory is asked for before they take it.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/conversion/program_to_proto.h"
#include "server/service/prepare.h"
#include "server/service/received_content.h"
#include "sim/program/builder.h"
#include "sim/work_meter.h"
#include "tests/environment.h"
#include "tests/sanitized.h"
#include "tests/server/ball_request.h"
#include "tests/thread_time.h"

namespace simgrad::server::service {
namespace {

constexpr int64_t kInstances = int64_t{1} << (kSanitized ? 18 : 20);
constexpr int64_t kWidth = 16;  // of the real state

void AddBytes(google::protobuf::RepeatedPtrField<v1::NamedTensor>* list, const std::string& name,
              v1::DType dtype, const std::vector<int64_t>& shape, size_t bytes) {
  v1::NamedTensor* tensor = list->Add();
  tensor->set_name(name);
  tensor->mutable_tensor()->set_dtype(dtype);
  for (const int64_t dim : shape) tensor->mutable_tensor()->add_shape(dim);
  tensor->mutable_tensor()->set_inline_(std::string(bytes, '\0'));
}

// A request about a world with a real and a whole state; ids ascend.
v1::GradientRequest ManyInstances() {
  sim::Builder b("many");
  const sim::Var x = b.State("x", {kWidth});
  const sim::Var n = b.State("n", {}, "", sim::ElementType::kI32);
  b.SetNext({x * b.Literal(0.5, {kWidth}), n});
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  v1::GradientRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  *spec->mutable_world()->mutable_program() = conversion::ProgramToProto(*program);
  spec->set_steps(1);
  spec->set_instances(kInstances);
  AddTensor(spec->mutable_initial(), "x", std::vector<double>(kWidth, 0.5), {kWidth});
  AddBytes(spec->mutable_initial(), "n", v1::DTYPE_I32, {}, 4);
  AddBytes(request.add_cotangents()->mutable_final_state(), "x", v1::DTYPE_F64,
           {kInstances, kWidth}, static_cast<size_t>(8 * kInstances * kWidth));
  return request;
}

// A request that names few instances, so that the part that a case adds is all there is to read.
v1::GradientRequest Base() {
  v1::GradientRequest request = ManyInstances();
  request.clear_cotangents();
  request.mutable_spec()->clear_instances();
  AddBytes(request.add_cotangents()->mutable_final_state(), "x", v1::DTYPE_F64, {1, kWidth},
           8 * kWidth);
  return request;
}

v1::Tensor& Initial(v1::GradientRequest& request, int which) {
  return *request.mutable_spec()->mutable_initial(which)->mutable_tensor();
}

void SetPerInstance(v1::GradientRequest& request, int which, v1::DType dtype,
                    const std::vector<int64_t>& shape, size_t bytes) {
  v1::Tensor& tensor = Initial(request, which);
  tensor.set_dtype(dtype);
  tensor.clear_shape();
  for (const int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_inline_(std::string(bytes, '\0'));
}

// The cotangent of every instance, in a format of one byte.
void SendCotangents(v1::GradientRequest& request) {
  request.clear_cotangents();
  request.mutable_spec()->set_instances(kInstances);
  AddBytes(request.add_cotangents()->mutable_final_state(), "x", v1::DTYPE_E4M3,
           {kInstances, kWidth}, static_cast<size_t>(kInstances * kWidth));
}

struct Case {
  std::string name;
  std::function<void(v1::GradientRequest&)> add;
  int64_t work = 0;  // in element-operations, at least
};

std::vector<Case> Cases() {
  const auto many = static_cast<size_t>(kInstances);
  return {
      {"IdsInAnyOrder",
       [](v1::GradientRequest& r) {
         SendCotangents(r);
         r.mutable_cotangents()->Clear();
         r.mutable_spec()->clear_instances();
         for (uint64_t i = 0; i < kInstances; ++i) {
           r.mutable_spec()->add_instance_ids((i * 0x9E3779B1) % kInstances);
         }
       },
       20 * kInstances},  // n log n comparisons
      {"WholeNumbersOfAnotherType",
       [](v1::GradientRequest& r) {
         r.clear_cotangents();
         SetPerInstance(r, 1, v1::DTYPE_I64, {kInstances}, 8 * many);
       },
       (1 + sim::kConversionWork) * kInstances},
      {"States",
       [](v1::GradientRequest& r) {
         r.clear_cotangents();
         SetPerInstance(r, 0, v1::DTYPE_E4M3, {kInstances, kWidth}, many * kWidth);
       },
       sim::kConversionWork * kInstances * kWidth},
      {"Cotangents", SendCotangents, sim::kConversionWork * kInstances * kWidth},
  };
}

class PreparationLooks : public ::testing::TestWithParam<Case> {
 protected:
  // Prepares a rollout where the request has no cotangent.
  absl::StatusOr<PreparedWork> Make(const v1::GradientRequest& request,
                                    const PrepareControl& control) {
    if (request.cotangents_size() > 0) return Prepare(request, cache_, {}, control);
    v1::RolloutRequest rollout;
    *rollout.mutable_spec() = request.spec();
    return Prepare(rollout, cache_, {}, control);
  }
  v1::GradientRequest Request() const {
    v1::GradientRequest request = Base();
    GetParam().add(request);
    return request;
  }

  conversion::ProgramCache cache_{{}, [](conversion::ProgramCache::Lookup) {}};
};

// They are at most 100 ms apart on an idle core, which SIMGRAD_LONG=1 asserts; else fivefold slack.
TEST_P(PreparationLooks, AreAtLeastOnePerMillionElementOperations) {
  const double most_ms = IsLong() ? 100 : 500;
  const v1::GradientRequest request = Request();
  int64_t looks = 0;
  double last = ThreadTime().count(), longest = 0;
  const auto look = [&] {
    const double now = ThreadTime().count();
    longest = std::max(longest, now - last);
    last = now;
    ++looks;
    return false;
  };
  PrepareControl control;
  control.compile.stop = look;
  const auto prepared = Make(request, control);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  longest = std::max(longest, ThreadTime().count() - last);
  RecordProperty("longest_us", static_cast<int>(1e3 * longest));
  EXPECT_GE(looks, GetParam().work >> 20);
  EXPECT_GE(looks, 4);
  EXPECT_LT(longest, most_ms);
}

TEST_P(PreparationLooks, EndItWhereverOneSaysSo) {
  const v1::GradientRequest request = Request();
  int64_t looks = 0, last = -1;
  PrepareControl control;
  control.compile.stop = [&] { return ++looks == last; };
  ASSERT_TRUE(Make(request, control).ok());
  looks = 0;  // the program is lowered only once
  ASSERT_TRUE(Make(request, control).ok());
  const int64_t all = looks;
  for (const int64_t at : {int64_t{1}, all / 2, all}) {
    looks = 0;
    last = at;
    EXPECT_EQ(Make(request, control).status().code(), absl::StatusCode::kCancelled) << at;
    EXPECT_EQ(looks, at) << "it asks again after it was told to end";
  }
}

// Names are looked up in the world once all tensors are right by themselves.
TEST(PreparationOfManyTensors, LooksAtEachOfThem) {
  constexpr int kTensors = 1 << 16;
  conversion::ProgramCache cache({}, [](conversion::ProgramCache::Lookup) {});
  v1::GradientRequest request = Base();
  auto* const sent = request.mutable_cotangents(0)->mutable_final_state();
  for (int i = 0; i < kTensors; ++i) AddTensor(sent, "n" + std::to_string(i), {}, {0});
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = Base().spec();
  *rollout.mutable_spec()->mutable_params() = *sent;
  int64_t looks = 0;
  PrepareControl control;
  control.compile.stop = [&] { return ++looks < 0; };
  EXPECT_EQ(Prepare(request, cache, {}, control).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_GE(looks, kTensors / 2048);
  looks = 0;
  EXPECT_EQ(Prepare(rollout, cache, {}, control).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_GE(looks, kTensors / 2048);
}

INSTANTIATE_TEST_SUITE_P(Requests, PreparationLooks, ::testing::ValuesIn(Cases()),
                         [](const auto& param) { return param.param.name; });

// Memory for `bytes` is asked for, and without it the request is refused.
void ExpectAsked(const v1::GradientRequest& request, int64_t bytes) {
  conversion::ProgramCache cache({}, [](conversion::ProgramCache::Lookup) {});
  int64_t asked = 0;
  bool has_memory = true;
  PrepareControl control;
  control.take_numbers = [&](int64_t more) {
    asked += more;
    return has_memory;
  };
  ASSERT_TRUE(Prepare(request, cache, {}, control).ok());
  EXPECT_EQ(asked, bytes);
  if (bytes == 0) return;
  has_memory = false;
  const absl::Status refused = Prepare(request, cache, {}, control).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
}

TEST(PreparationMemory, OfCotangentsInSmallFormatsIsAskedForBeforeTheyAreRead) {
  v1::GradientRequest request = Base();
  SendCotangents(request);
  ExpectAsked(request, 7 * kInstances * kWidth);  // eight bytes for each that was sent as one
  // Numbers that are sent as f64 take no more than their copy, which every request has.
  ExpectAsked(Base(), 0);
}

TEST(PreparationMemory, OfIntegersInSmallTypesIsAskedForBeforeTheyAreRead) {
  v1::GradientRequest request = ManyInstances();
  SetPerInstance(request, 1, v1::DTYPE_U8, {kInstances}, static_cast<size_t>(kInstances));
  ExpectAsked(request, 3 * kInstances);  // four bytes for each that was sent as one
}

TEST(PreparationMemory, OfAFoundWorldIsNotAskedFor) {
  conversion::ProgramCache cache({}, [](conversion::ProgramCache::Lookup) {});
  ASSERT_TRUE(Prepare(Base(), cache, {}, {}).ok());
  int64_t asked = 0;
  PrepareControl control;
  control.compile.reserve = [&](int64_t) {
    ++asked;
    return false;
  };
  const auto found = Prepare(Base(), cache, {}, control);
  EXPECT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(asked, 0);
}

TEST(UploadLooks, EndTheHashOfItsContent) {
  constexpr int64_t kBytes = int64_t{16} << 20;
  int64_t looks = 0, last = -1;
  const auto join = [&] {
    ReceivedContent content(kBytes);
    v1::UploadRequest message;
    message.set_sha256(std::string(ReceivedContent::kDigestBytes, 'a'));
    message.set_size(kBytes);
    message.set_data(std::string(kBytes, 'x'));
    const std::string bytes = message.SerializeAsString();
    const grpc::Slice slice(bytes.data(), bytes.size());
    grpc::ByteBuffer buffer(&slice, 1);
    EXPECT_TRUE(content.Take(buffer));
    EXPECT_TRUE(content.Check().ok());
    looks = 0;
    return content.Join([&] { return ++looks == last; }).status();
  };
  EXPECT_EQ(join().code(), absl::StatusCode::kInvalidArgument);  // of another digest
  const int64_t all = looks;
  EXPECT_GE(all, kBytes >> 20);
  for (const int64_t at : {int64_t{1}, all / 2, all}) {
    last = at;
    EXPECT_EQ(join().code(), absl::StatusCode::kCancelled) << at;
    EXPECT_EQ(looks, at);
  }
}

}  // namespace
}  // namespace simgrad::server::service
