// What a request takes of the memory budget: its bytes, with their copies, and what its numbers take
// beyond them, until it is admitted; from then on what its work takes, in which its numbers are.
#include <fstream>

#include "server/conversion/program_to_proto.h"
#include "sim/program/builder.h"
#include "tests/server/blocker.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

using scheduling::Lane;
using scheduling::MemoryUse;

constexpr int64_t kInstances = 1 << 14;
constexpr int64_t kWidth = 8;  // of the real state

void AddZeros(google::protobuf::RepeatedPtrField<v1::NamedTensor>* list, const std::string& name,
              v1::DType dtype, const std::vector<int64_t>& shape, int64_t bytes) {
  v1::NamedTensor* tensor = list->Add();
  tensor->set_name(name);
  tensor->mutable_tensor()->set_dtype(dtype);
  for (const int64_t dim : shape) tensor->mutable_tensor()->add_shape(dim);
  tensor->mutable_tensor()->set_inline_(std::string(static_cast<size_t>(bytes), '\0'));
}

// One step of a world with a real and a whole state. Which numbers it sends is left to the caller.
v1::GradientRequest Halving() {
  sim::Builder b("halving");
  const sim::Var x = b.State("x", {kWidth});
  const sim::Var n = b.State("n", {}, "", sim::ElementType::kI32);
  b.SetNext({x * b.Literal(0.5, {kWidth}), n});
  b.AddObjective("sum", nullptr, [&](const sim::Vars& states, const sim::Vars&) {
    return b.Reduce(sim::OpCode::kSum, states[0]);
  });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  v1::GradientRequest request;
  v1::RolloutSpec* const spec = request.mutable_spec();
  *spec->mutable_world()->mutable_program() = conversion::ProgramToProto(*program);
  spec->set_steps(1);
  spec->set_instances(kInstances);
  AddTensor(spec->mutable_initial(), "x", std::vector<double>(kWidth, 0.5), {kWidth});
  return request;
}

// How the numbers of a case are sent: of one byte each, in the type that the work has them in, or not.
enum class Sent { kSmall, kWhole, kNot };

struct Case {
  std::string name;
  int64_t numbers = 0;
  int64_t bytes_each = 0;  // in the work
  std::function<void(v1::GradientRequest&, Sent)> add;
};

std::vector<Case> Cases() {
  constexpr int64_t kNumbers = 2 * kInstances * kWidth;
  return {{"Cotangents", kNumbers, 8,
           [](v1::GradientRequest& request, Sent sent) {
             AddZeros(request.mutable_spec()->mutable_initial(), "n", v1::DTYPE_I32, {}, 4);
             v1::Cotangent& cotangent = *request.add_cotangents();
             AddZeros(cotangent.mutable_final_state(), "x", v1::DTYPE_F64, {kInstances, kWidth},
                      8 * kInstances * kWidth);
             if (sent == Sent::kNot) return;
             const bool small = sent == Sent::kSmall;
             AddZeros(cotangent.mutable_trajectory(), "x", small ? v1::DTYPE_E4M3 : v1::DTYPE_F64,
                      {kInstances, 2, kWidth}, small ? kNumbers : 8 * kNumbers);
           }},
          {"WholeNumbers", kInstances, 4, [](v1::GradientRequest& request, Sent sent) {
             request.mutable_spec()->set_objective("sum");
             auto* const initial = request.mutable_spec()->mutable_initial();
             if (sent == Sent::kNot) return AddZeros(initial, "n", v1::DTYPE_I32, {}, 4);
             const bool small = sent == Sent::kSmall;
             AddZeros(initial, "n", small ? v1::DTYPE_U8 : v1::DTYPE_I32, {kInstances},
                      small ? kInstances : 4 * kInstances);
           }}};
}

class Share : public testing::Test {
 protected:
  Share() { config_.token_file = path_; }
  ~Share() override { unlink(path_.c_str()); }

  // Starts a server that knows "any", and "ada" with a share of so many bytes.
  std::unique_ptr<RunningServer> Start(int64_t share) {
    std::ofstream(path_) << "any-token name=any\n"
                         << "ada-token name=ada memory_bytes=" << share << "\n";
    return std::make_unique<RunningServer>(config_);
  }

  // A gradient, asked for by `who`, that waits for a worker once it is admitted.
  class Admitted {
   public:
    Admitted(RunningServer& server, const v1::GradientRequest& request, const std::string& who)
        : scheduler_(const_cast<scheduling::Scheduler&>(server.server().queue())) {
      // An answer is there before its reader has let go of it.
      EXPECT_TRUE(Eventually([this] { return work_bytes() == 0; }));
      for (const Lane lane : {Lane::kSmall, Lane::kLarge}) {
        scheduling::WorkQueue& queue = scheduler_.lane(lane);
        for (int i = 0; i < queue.workers(); ++i) {
          blockers_.push_back(std::make_unique<scheduling::Blocker>(queue));
        }
      }
      context_.AddMetadata("authorization", "Bearer " + who + "-token");
      reader_ = server.Gradient(&context_, request);
      EXPECT_TRUE(Eventually([this] { return scheduler_.waiting() == 1; }));
      // What came on a connection is told by looks now and then.
      EXPECT_TRUE(Eventually([this] { return scheduler_.memory().used(MemoryUse::kUpload) == 0; }));
    }
    int64_t work_bytes() const { return scheduler_.memory().used(MemoryUse::kWork); }
    // A caller that has such a share.
    std::shared_ptr<scheduling::Caller> Find(const std::string& name, int64_t share) {
      scheduling::CallerLimits limits;
      limits.memory_bytes = share;
      return scheduler_.callers().Find(name, limits);
    }
    grpc::Status End() {
      blockers_.clear();
      for (v1::GradientPart part; reader_->Read(&part);) {
      }
      return reader_->Finish();
    }

   private:
    scheduling::Scheduler& scheduler_;
    std::vector<std::unique_ptr<scheduling::Blocker>> blockers_;
    grpc::ClientContext context_;
    std::unique_ptr<PartReader<v1::GradientResponse>> reader_;
  };

  static grpc::Status Ask(RunningServer& server, const v1::GradientRequest& request,
                          const std::string& who) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + who + "-token");
    const auto reader = server.Gradient(&context, request);
    for (v1::GradientPart part; reader->Read(&part);) {
    }
    return reader->Finish();
  }

  const std::string path_ = testing::TempDir() + "/admission_" + std::to_string(getpid());
  config::ServerConfig config_ = FreePorts();
};

class AdmissionMemory : public Share, public testing::WithParamInterface<Case> {
 protected:
  static v1::GradientRequest Request(Sent sent) {
    v1::GradientRequest request = Halving();
    GetParam().add(request, sent);
    return request;
  }
};

TEST_P(AdmissionMemory, HasTheNumbersInItInWhateverTypeTheyAreSent) {
  const auto server = Start(1);
  std::map<Sent, int64_t> work;
  for (const Sent sent : {Sent::kSmall, Sent::kWhole, Sent::kNot}) {
    Admitted admitted(*server, Request(sent), "any");
    work[sent] = admitted.work_bytes();
    const grpc::Status status = admitted.End();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(work[Sent::kSmall], work[Sent::kWhole]);
  EXPECT_GE(work[Sent::kWhole] - work[Sent::kNot], GetParam().numbers * GetParam().bytes_each);
}

TEST_P(AdmissionMemory, IsTakenOnce) {
  const v1::GradientRequest request = Request(Sent::kSmall);
  const auto sent = static_cast<int64_t>(request.ByteSizeLong());
  int64_t work = 0;
  {
    const auto server = Start(1);
    Admitted admitted(*server, request, "any");
    work = admitted.work_bytes();
    EXPECT_TRUE(admitted.End().ok());
  }
  // The bytes of the request, and a message that is made of them, are there until it is admitted.
  const int64_t held = service::kRequestCopies * sent;
  const int64_t beyond = GetParam().numbers * (GetParam().bytes_each - 1);
  ASSERT_LT(held + beyond, held + work - 1) << "it would be refused before it is prepared";
  {
    const auto server = Start(held + work);
    ASSERT_TRUE(Ask(*server, request, "any").ok());  // its program is there from now on
    Admitted admitted(*server, request, "ada");
    EXPECT_EQ(admitted.work_bytes(), work);
    const auto ada = admitted.Find("ada", held + work);
    EXPECT_EQ(ada->memory_bytes(), work);
    // It lives on that: whatever else of its caller takes the rest.
    EXPECT_TRUE(ada->TakeMemory(held));
    const grpc::Status status = admitted.End();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(Eventually([&] { return ada->memory_bytes() == held; }));
    ada->GiveMemory(held);
  }
  // The executor needs less than the bound for all of them, by which large shares are admitted.
  int64_t needed = 0;
  {
    const auto server = Start(held + work - 1);
    ASSERT_TRUE(Ask(*server, request, "any").ok());
    Admitted admitted(*server, request, "ada");
    needed = admitted.work_bytes();
    EXPECT_TRUE(admitted.End().ok());
  }
  ASSERT_LT(needed, work);
  ASSERT_LT(held + beyond, held + needed - 1) << "it would be refused before it is prepared";
  const auto server = Start(held + needed - 1);
  ASSERT_TRUE(Ask(*server, request, "any").ok());
  const grpc::Status refused = Ask(*server, request, "ada");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(refused).info.reason(), "CALLER_LIMIT");
  // What its numbers took beyond it is given back first. The rest of the request never fits beside it.
  EXPECT_FALSE(DetailsOf(refused).has_retry);
  EXPECT_NE(refused.error_message().find("about " + std::to_string(held + needed) +
                                         " bytes, caller 'ada' may have " +
                                         std::to_string(held + needed - 1)),
            std::string::npos)
      << refused.error_message();
}

// A program that is prepared takes 4 MiB at least: of its caller's share, and of the server's memory.
TEST_P(AdmissionMemory, OfAPreparationIsRefusedAsThatOfAnyRequest) {
  const auto server = Start(3 << 20);
  const auto rejected = [&](const std::string& reason) {
    const auto series = server->Series();
    const auto found =
        series.find("simgrad_caller_rejected_total{caller=\"ada\",reason=\"" + reason + "\"}");
    return found == series.end() ? 0.0 : found->second;
  };
  const grpc::Status never = Ask(*server, Request(Sent::kNot), "ada");
  EXPECT_EQ(never.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(never).info.reason(), "CALLER_LIMIT");
  EXPECT_FALSE(DetailsOf(never).has_retry);
  EXPECT_NE(never.error_message().find("caller 'ada' may have 3145728 to prepare a program"),
            std::string::npos)
      << never.error_message();
  EXPECT_EQ(rejected("share"), 1);

  auto& scheduler = const_cast<scheduling::Scheduler&>(server->server().queue());
  const int64_t all = scheduler.memory_limit_bytes() - (int64_t{2} << 20);
  auto others = scheduler.memory().Reserve(all, MemoryUse::kWork);
  ASSERT_TRUE(others.has_value());
  const grpc::Status later = Ask(*server, Request(Sent::kNot), "any");
  EXPECT_EQ(later.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(later).info.reason(), "OUT_OF_MEMORY");
  EXPECT_TRUE(DetailsOf(later).has_retry);
  others.reset();
  EXPECT_TRUE(Ask(*server, Request(Sent::kNot), "any").ok());
}

// Large work is planned to be admitted; small work has a bound, which may be above that of more instances.
TEST_F(Share, OfACallerHasRoomForFewInstancesWhereItHasForMany) {
  const v1::GradientRequest few = BallGradient(300, 10);
  const v1::GradientRequest many = BallGradient(300, 1000);
  int64_t bound = 0, planned = 0;
  {
    const auto server = Start(1);
    for (const auto& [request, bytes] : {std::pair(&few, &bound), std::pair(&many, &planned)}) {
      Admitted admitted(*server, *request, "any");
      *bytes = admitted.work_bytes();
      EXPECT_TRUE(admitted.End().ok());
    }
  }
  const int64_t share = planned + planned / 2;
  ASSERT_GT(bound, share);
  const auto server = Start(share);
  for (const v1::GradientRequest& request : {few, many}) {
    ASSERT_TRUE(Ask(*server, request, "any").ok());  // its program is there from now on
    const grpc::Status status = Ask(*server, request, "ada");
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, AdmissionMemory, testing::ValuesIn(Cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace simgrad::server
