// Content that is uploaded, and requests that name it, through a real channel.
#include <openssl/sha.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/server/deterministic_bytes.h"
#include "tests/server/running_server.h"

namespace simgrad::server {
namespace {

constexpr int64_t kMiB = 1 << 20;
using Asked = std::function<void(grpc::ClientContext&)>;
const Asked kPlain = [](grpc::ClientContext&) {};

std::string Sha256(const std::string& bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

// The messages of an upload, of so many bytes each.
std::vector<v1::UploadRequest> PiecesOf(const std::string& content, size_t piece = kMiB) {
  std::vector<v1::UploadRequest> messages(1);
  messages[0].set_sha256(Sha256(content));
  messages[0].set_size(static_cast<int64_t>(content.size()));
  for (size_t at = 0; at < content.size(); at += piece) {
    if (at > 0) messages.emplace_back();
    messages.back().set_data(content.substr(at, piece));
  }
  return messages;
}

struct Uploaded {
  grpc::Status status;
  v1::UploadResponse response;
};

Uploaded Upload(RunningServer& server, const std::vector<v1::UploadRequest>& messages,
                const Asked& how = kPlain) {
  Uploaded uploaded;
  grpc::ClientContext context;
  how(context);
  const auto writer = server.stub().Upload(&context, &uploaded.response);
  for (const v1::UploadRequest& message : messages) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  uploaded.status = writer->Finish();
  return uploaded;
}

// The digest; what was uploaded is kept.
std::string Kept(RunningServer& server, const std::string& content, const Asked& how = kPlain) {
  const Uploaded uploaded = Upload(server, PiecesOf(content), how);
  EXPECT_TRUE(uploaded.status.ok()) << uploaded.status.error_message();
  EXPECT_EQ(uploaded.response.ref(), Sha256(content));
  EXPECT_GT(uploaded.response.seconds(), 0);
  return uploaded.response.ref();
}

void ExpectError(const grpc::Status& status, grpc::StatusCode code, const std::string& reason,
                 const std::string& field) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  const Details details = DetailsOf(status);
  EXPECT_EQ(details.info.reason(), reason) << status.error_message();
  ASSERT_EQ(details.bad_request.field_violations_size(), field.empty() ? 0 : 1);
  if (field.empty()) return;
  EXPECT_EQ(details.bad_request.field_violations(0).field(), field);
}

void ExpectGone(const grpc::Status& status, const std::string& field) {
  ExpectError(status, grpc::StatusCode::FAILED_PRECONDITION, "TENSOR_GONE", field);
}

std::string BitsOf(v1::RolloutResult result) {
  result.clear_phase_seconds();
  return DeterministicBytes(result);
}
std::string BitsOf(v1::GradientResult result) {
  result.mutable_rollout()->clear_phase_seconds();
  return DeterministicBytes(result);
}

void Refer(RunningServer& server, v1::Tensor& tensor) {
  tensor.set_ref(Kept(server, tensor.inline_()));
}

v1::Program BallProgram(RunningServer& server) {
  grpc::ClientContext context;
  v1::DescribeProgramRequest request;
  *request.mutable_world() = BallGradient(1).spec().world();
  v1::DescribeProgramResponse response;
  const grpc::Status status = server.stub().DescribeProgram(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.source();
}

double Series(RunningServer& server, const std::string& name) {
  const auto series = server.Series();
  const auto found = series.find(name);
  return found == series.end() ? -1.0 : found->second;
}

double Handled(RunningServer& server, const std::string& method, const std::string& type,
               const std::string& code) {
  return Series(server, "grpc_server_handled_total{grpc_code=\"" + code + "\",grpc_method=\"" +
                            method + "\",grpc_service=\"simgrad.v1.Simgrad\",grpc_type=\"" + type +
                            "\"}");
}

constexpr const char* kContentBytes = "simgrad_cache_bytes{cache=\"contents\"}";
constexpr const char* kContents = "simgrad_cache_entries{cache=\"contents\"}";
constexpr const char* kUploadBytes = "simgrad_memory_reserved_bytes{use=\"upload\"}";

TEST(Upload, ARequestThatNamesContentHasTheBitsOfOneThatSendsIt) {
  RunningServer server;
  v1::GradientRequest whole = BallGradient(30, 8);
  *whole.mutable_spec()->mutable_world()->mutable_program() = BallProgram(server);
  whole.mutable_spec()->mutable_world()->clear_config();
  whole.mutable_spec()->mutable_policy()->set_preset("bf16_safe");
  AddTensor(whole.add_cotangents()->mutable_final_state(), "y", {1, 2, 3, 4, 5, 6, 7, 8}, {8, 1});
  AddTensor(whole.mutable_cotangents(0)->mutable_trajectory(), "v",
            std::vector<double>(size_t{8} * 31, 0.5), {8, 31, 1});
  const auto expected = Ask(server, whole);
  ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();

  v1::GradientRequest named = whole;
  v1::World& world = *named.mutable_spec()->mutable_world();
  world.set_program_ref(Kept(server, world.program().SerializeAsString()));
  for (v1::NamedTensor& each : *named.mutable_spec()->mutable_initial()) {
    Refer(server, *each.mutable_tensor());
  }
  Refer(server, *named.mutable_spec()->mutable_params(0)->mutable_tensor());
  Refer(server, *named.mutable_cotangents(0)->mutable_final_state(0)->mutable_tensor());
  Refer(server, *named.mutable_cotangents(0)->mutable_trajectory(0)->mutable_tensor());
  const auto answer = Ask(server, named);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.header().program().fingerprint(), expected.header().program().fingerprint());
  EXPECT_EQ(BitsOf(answer.result()), BitsOf(expected.result()));
  // Into how many blocks the steps are cut is a matter of time.
  const auto steps = [](const auto& blocks) {
    int64_t sum = 0;
    for (const v1::DiagnosticsBlock& block : blocks) sum += block.steps();
    return sum;
  };
  EXPECT_EQ(steps(answer.blocks()), 30);
  EXPECT_EQ(steps(expected.blocks()), 30);

  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = whole.spec();
  const auto plain = Ask(server, rollout);
  *rollout.mutable_spec() = named.spec();
  const auto by_name = Ask(server, rollout);
  ASSERT_TRUE(by_name.status.ok()) << by_name.status.error_message();
  EXPECT_EQ(BitsOf(by_name.result()), BitsOf(plain.result()));
  const auto again = Ask(server, rollout);  // the program is known now
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(BitsOf(again.result()), BitsOf(plain.result()));

  (*rollout.mutable_spec()->mutable_world()->mutable_config())["tol"].set_number(1.0);
  ExpectError(Ask(server, rollout).status, grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD",
              "spec.world.config");
}

TEST(Upload, APathAProgramToDescribeAndTheCotangentsOfAVjpMayBeNamed) {
  RunningServer server;
  v1::RolloutRequest request = BallRollout(20, 3);
  request.mutable_spec()->mutable_path()->set_record(true);
  const auto recorded = Ask(server, request);
  ASSERT_TRUE(recorded.status.ok()) << recorded.status.error_message();
  v1::Path& path = *request.mutable_spec()->mutable_path()->mutable_forced();
  request.mutable_spec()->mutable_path()->clear_record();
  const v1::PathLayout& layout = recorded.header().path();
  std::string decisions;
  for (const v1::RolloutPart& part : recorded.parts) {
    if (part.trajectory().name() == "path taken") decisions += part.trajectory().data();
  }
  path.set_structure(layout.structure());
  path.mutable_decisions()->set_dtype(v1::DTYPE_U8);
  for (int64_t dim : {int64_t{3}, int64_t{20}, layout.bytes()}) {
    path.mutable_decisions()->add_shape(dim);
  }
  path.mutable_decisions()->set_inline_(decisions);
  const auto sent = Ask(server, request);
  ASSERT_TRUE(sent.status.ok()) << sent.status.error_message();
  Refer(server, *path.mutable_decisions());
  const auto named = Ask(server, request);
  ASSERT_TRUE(named.status.ok()) << named.status.error_message();
  EXPECT_EQ(BitsOf(named.result()), BitsOf(sent.result()));

  grpc::ClientContext context;
  v1::DescribeProgramRequest describe;
  describe.mutable_world()->set_program_ref(Kept(server, BallProgram(server).SerializeAsString()));
  v1::DescribeProgramResponse described;
  const grpc::Status status = server.stub().DescribeProgram(&context, describe, &described);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(DeterministicBytes(described.source()), DeterministicBytes(BallProgram(server)));

  v1::RolloutRequest kept;
  *kept.mutable_spec() = BallGradient(10, 2).spec();
  kept.mutable_keep();
  v1::VjpRequest vjp;
  vjp.set_handle(Ask(server, kept).result().kept().handle());
  AddTensor(vjp.add_cotangents()->mutable_final_state(), "y", {1, 2}, {2, 1});
  const auto reversed = [&] {
    grpc::ClientContext vjp_context;
    PartReader<v1::GradientResponse> reader(server.stub().Vjp(&vjp_context, vjp));
    v1::GradientPart last;
    for (v1::GradientPart part; reader.Read(&part);) last = part;
    const grpc::Status ended = reader.Finish();
    EXPECT_TRUE(ended.ok()) << ended.error_message();
    return BitsOf(last.result());
  };
  const std::string expected = reversed();
  Refer(server, *vjp.mutable_cotangents(0)->mutable_final_state(0)->mutable_tensor());
  EXPECT_EQ(reversed(), expected);
}

// The rollout holds its program, however it was sent.
TEST(Upload, AKeptRolloutIsReversedWhenItsProgramIsGone) {
  config::ServerConfig config = FreePorts();
  config.content_bytes = 2 * kMiB;
  RunningServer server(config);
  v1::RolloutRequest request;
  *request.mutable_spec() = BallGradient(10, 2).spec();
  request.mutable_spec()->clear_world();
  request.mutable_keep();
  const v1::Program program = BallProgram(server);
  const auto reversed = [&] {
    const auto rolled_out = Ask(server, request);
    EXPECT_TRUE(rolled_out.status.ok()) << rolled_out.status.error_message();
    Kept(server, std::string(2 * kMiB - 600, 'a'));
    EXPECT_EQ(Series(server, kContents), 1);
    v1::VjpRequest vjp;
    vjp.set_handle(rolled_out.result().kept().handle());
    grpc::ClientContext context;
    PartReader<v1::GradientResponse> reader(server.stub().Vjp(&context, vjp));
    v1::GradientPart last;
    for (v1::GradientPart part; reader.Read(&part);) last = part;
    const grpc::Status ended = reader.Finish();
    EXPECT_TRUE(ended.ok()) << ended.error_message();
    EXPECT_TRUE(last.result().reused());
    return BitsOf(last.result());
  };
  *request.mutable_spec()->mutable_world()->mutable_program() = program;
  const std::string expected = reversed();
  request.mutable_spec()->mutable_world()->set_program_ref(
      Kept(server, program.SerializeAsString()));
  EXPECT_EQ(reversed(), expected);
  ExpectGone(Ask(server, request).status, "spec.world.program_ref");
}

TEST(Upload, ComesInPiecesOfAnySizeAndIsCounted) {
  RunningServer server;
  const std::string content(3 * kMiB + 7, 'a');
  for (const size_t piece : {size_t{1000}, size_t{65'537}, size_t{4 * kMiB}}) {
    const Uploaded uploaded = Upload(server, PiecesOf(content, piece));
    ASSERT_TRUE(uploaded.status.ok()) << uploaded.status.error_message();
    EXPECT_EQ(uploaded.response.ref(), Sha256(content));
    EXPECT_EQ(uploaded.response.seconds(), 600);
  }
  std::vector<v1::UploadRequest> later = PiecesOf("b");
  later.insert(later.begin(), later[0]);  // what it says first, then the content
  later[0].clear_data();
  later[1].clear_sha256();
  later[1].clear_size();
  EXPECT_TRUE(Upload(server, later).status.ok());
  EXPECT_EQ(Series(server, kContents), 2);
  EXPECT_GE(Series(server, kContentBytes), 3 * kMiB);
  EXPECT_LE(Series(server, kContentBytes), 3 * kMiB + 4096);
  EXPECT_GE(Series(server, "simgrad_memory_reserved_bytes{use=\"cache\"}"), 3 * kMiB);
  EXPECT_EQ(Series(server, kUploadBytes), 0);
  EXPECT_EQ(Handled(server, "Upload", "client_stream", "OK"), 4);
}

TEST(Upload, WhatIsWrongIsNamedByItsField) {
  config::ServerConfig config = FreePorts();
  config.max_request_bytes = 2 * kMiB;
  RunningServer server(config);
  const auto refused = [&](std::vector<v1::UploadRequest> messages, const std::string& field,
                           const std::string& reason = "INVALID_FIELD") {
    SCOPED_TRACE(field + " " + reason);
    ExpectError(Upload(server, messages).status, grpc::StatusCode::INVALID_ARGUMENT, reason, field);
  };
  const auto spoilt = [](const std::function<void(std::vector<v1::UploadRequest>&)>& spoil) {
    std::vector<v1::UploadRequest> messages = PiecesOf(std::string(1000, 'a'), 400);
    spoil(messages);
    return messages;
  };
  refused({}, "request");
  refused(spoilt([](auto& m) { m[0].set_sha256("abc"); }), "sha256");
  refused(spoilt([](auto& m) { m[0].clear_sha256(); }), "sha256");
  refused(spoilt([](auto& m) { m[0].set_sha256(std::string(32, 'a')); }), "sha256");
  refused(spoilt([](auto& m) { m[1].set_sha256(m[0].sha256()); }), "sha256");
  refused(spoilt([](auto& m) { m[0].set_size(0); }), "size");
  refused(spoilt([](auto& m) { m[0].set_size(-1); }), "size");
  refused(spoilt([](auto& m) { m[0].set_size(1001); }), "size");
  refused(spoilt([](auto& m) { m[1].set_size(1000); }), "size");
  refused(spoilt([](auto& m) { m[0].set_size(2 * kMiB + 1); }), "size", "LIMIT_EXCEEDED");
  refused(spoilt([](auto& m) { m[0].set_size(999); }), "data");
  refused(spoilt([](auto& m) { m[1].clear_data(); }), "data");
  EXPECT_EQ(Series(server, kContents), 0);
  EXPECT_EQ(Series(server, kUploadBytes), 0);
  EXPECT_EQ(Handled(server, "Upload", "client_stream", "InvalidArgument"), 12);

  // Of two bytes each: as many as there may be, and one more.
  std::vector<v1::UploadRequest> many = PiecesOf(std::string(2 * 16'384, 'a'), 2);
  EXPECT_TRUE(Upload(server, many).status.ok());
  refused(PiecesOf(std::string(2 * 16'385, 'a'), 2), "data", "LIMIT_EXCEEDED");
}

TEST(Upload, BytesThatAreNoMessageAreToldSo) {
  RunningServer server;
  std::vector<v1::UploadRequest> messages = PiecesOf("abc");
  messages[0].GetReflection()->MutableUnknownFields(&messages[0])->AddVarint(17, 1);
  const grpc::Status status = Upload(server, messages).status;
  ExpectError(status, grpc::StatusCode::INVALID_ARGUMENT, "INVALID_FIELD", "request");
  EXPECT_NE(status.error_message().find("unknown field 17"), std::string::npos);
}

TEST(Upload, WhatARequestNamesIsCheckedAsIfItStoodThere) {
  config::ServerConfig config = FreePorts();
  config.max_request_bytes = kMiB;
  RunningServer server(config);
  const auto ask = [&](const std::function<void(v1::RolloutSpec&)>& spoil) {
    v1::RolloutRequest request = BallRollout(3, 2);
    spoil(*request.mutable_spec());
    return Ask(server, request).status;
  };
  const auto initial = [&](const std::string& ref) {
    return ask([&](auto& spec) { spec.mutable_initial(0)->mutable_tensor()->set_ref(ref); });
  };
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  ExpectError(initial("abc"), kInvalid, "INVALID_FIELD", "spec.initial[0].tensor.ref");
  ExpectError(initial(""), kInvalid, "INVALID_FIELD", "spec.initial[0].tensor.ref");
  ExpectGone(initial(std::string(32, 'a')), "spec.initial[0].tensor.ref");
  const grpc::Status short_one = initial(Kept(server, "fifteen bytes.."));
  ExpectError(short_one, kInvalid, "INVALID_FIELD", "spec.initial[0].tensor.ref");
  EXPECT_NE(short_one.error_message().find("15 bytes, but DTYPE_F64 [2, 1] takes 16"),
            std::string::npos)
      << short_one.error_message();

  const auto world = [&](const std::string& program) {
    const std::string ref = Kept(server, program);
    return ask([&](auto& spec) {
      spec.mutable_world()->set_program_ref(ref);
      spec.mutable_world()->clear_config();
    });
  };
  ExpectError(world("\x0a"), kInvalid, "INVALID_FIELD", "spec.world.program_ref");
  // What is no program is told as that, also where it reads as another message or as an empty one.
  v1::World message;
  message.set_name("bouncing_ball");
  for (const std::string& other :
       {std::string("text, and no program"), message.SerializeAsString(), std::string(64, '\0')}) {
    const grpc::Status wrong = world(other);
    ExpectError(wrong, kInvalid, "INVALID_FIELD", "spec.world.program_ref");
    EXPECT_NE(wrong.error_message().find(absl::StrCat(
                  "the ", other.size(), " bytes that it names are no simgrad.v1.Program")),
              std::string::npos)
        << wrong.error_message();
  }
  v1::Program program = BallProgram(server);
  program.mutable_step()
      ->mutable_ops(0)
      ->GetReflection()
      ->MutableUnknownFields(program.mutable_step()->mutable_ops(0))
      ->AddVarint(1000, 1);
  ExpectError(world(program.SerializeAsString()), kInvalid, "INVALID_FIELD",
              "spec.world.program.step.ops[0]");
  program = BallProgram(server);
  program.mutable_step()->mutable_ops(0)->add_operands(1'000'000);
  const grpc::Status invalid = world(program.SerializeAsString());
  const grpc::Status as_sent = ask([&](auto& spec) {
    *spec.mutable_world()->mutable_program() = program;
    spec.mutable_world()->clear_config();
  });
  EXPECT_EQ(invalid.error_code(), kInvalid);
  EXPECT_EQ(invalid.error_message(), as_sent.error_message());
  EXPECT_EQ(DeterministicBytes(DetailsOf(invalid).bad_request),
            DeterministicBytes(DetailsOf(as_sent).bad_request));
  ExpectError(ask([](auto& spec) { spec.mutable_world()->set_program_ref(std::string(32, 'a')); }),
              grpc::StatusCode::FAILED_PRECONDITION, "TENSOR_GONE", "spec.world.program_ref");

  // Half a request, named three times.
  const std::string half = Kept(server, std::string(kMiB / 2 - 512, '\0'));
  ExpectError(ask([&](auto& spec) {
                for (int i : {0, 1}) {
                  spec.mutable_initial(i)->mutable_tensor()->set_ref(half);
                  spec.mutable_initial(i)->mutable_tensor()->clear_shape();
                  spec.mutable_initial(i)->mutable_tensor()->add_shape((kMiB / 2 - 512) / 8);
                }
                spec.mutable_params(0)->mutable_tensor()->set_ref(half);
              }),
              kInvalid, "LIMIT_EXCEEDED", "spec.params[0].tensor.ref");
  EXPECT_EQ(Handled(server, "Rollout", "server_stream", "FailedPrecondition"), 2);
  EXPECT_EQ(Series(server, kUploadBytes), 0);
}

TEST(Upload, LimitsAreToldAndTheLeastRecentlyUsedGoes) {
  config::ServerConfig config = FreePorts();
  config.content_bytes = 3 * kMiB;
  config.content_ttl = absl::Seconds(30);
  RunningServer server(config);
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(server.stub().GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.limits().max_uploaded_bytes(), 3 * kMiB);
  EXPECT_EQ(info.limits().max_upload_bytes(), 3 * kMiB - 512);
  EXPECT_EQ(info.limits().uploaded_seconds(), 30);
  v1::RolloutRequest request = BallRollout(1, kMiB / 8);
  Refer(server, *request.mutable_spec()->mutable_initial(0)->mutable_tensor());
  EXPECT_TRUE(Ask(server, request).status.ok());
  for (const char fill : {'a', 'b'}) Kept(server, std::string(kMiB, fill));
  ExpectGone(Ask(server, request).status, "spec.initial[0].tensor.ref");
  EXPECT_LE(Series(server, kContentBytes), 3 * kMiB);
}

TEST(Upload, ExpiresAndGivesItsMemoryBack) {
  config::ServerConfig config = FreePorts();
  config.content_ttl = absl::Milliseconds(50);
  RunningServer server(config);
  Kept(server, std::string(kMiB, 'a'));
  EXPECT_TRUE(Eventually([&] { return Series(server, kContents) == 0; }));
}

TEST(Upload, TakesItsMemoryOnce) {
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = 64 * kMiB;
  config.content_bytes = config.memory_limit_bytes;
  config.max_request_bytes = 32 * kMiB;
  RunningServer server(config);
  Kept(server, std::string(24 * kMiB, 'a'));
  Kept(server, std::string(30 * kMiB, 'b'));  // 54 MiB together, but 84 while it came twice
  EXPECT_EQ(Series(server, kContents), 2);
  EXPECT_EQ(Series(server, kUploadBytes), 0);
}

TEST(Upload, WorkThatNeedsTheMemoryGetsIt) {
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = 64 * kMiB;
  config.content_bytes = config.memory_limit_bytes;
  RunningServer server(config);
  for (char fill = 'a'; fill < 'l'; ++fill) Kept(server, std::string(4 * kMiB, fill));
  ASSERT_GE(Series(server, kContentBytes), 40.0 * kMiB);
  const auto large = Ask(server, BallRollout(50, 60'000));
  EXPECT_TRUE(large.status.ok()) << large.status.error_message();
  EXPECT_LT(Series(server, kContentBytes), 40.0 * kMiB);
}

// ---- Callers ----

class CallersUpload : public testing::Test {
 protected:
  CallersUpload() {
    std::ofstream(path_) << "ada-token name=ada memory_bytes=" << 8 * kMiB
                         << "\neve-token name=eve\n";
    config::ServerConfig config = FreePorts();
    config.token_file = path_;
    server_.emplace(config);
  }
  ~CallersUpload() override { std::remove(path_.c_str()); }
  static Asked As(const std::string& who) {
    return [who](grpc::ClientContext& context) {
      context.AddMetadata("authorization", "Bearer " + who + "-token");
    };
  }
  grpc::Status Rollout(const v1::RolloutRequest& request, const std::string& who) {
    grpc::ClientContext context;
    As(who)(context);
    const auto reader = server_->Rollout(&context, request);
    for (v1::RolloutPart part; reader->Read(&part);) {
    }
    return reader->Finish();
  }

  const std::string path_ = testing::TempDir() + "/upload_" + std::to_string(getpid());
  std::optional<RunningServer> server_;
};

TEST_F(CallersUpload, HaveContentOfTheirOwn) {
  v1::RolloutRequest request = BallRollout(3, 4);
  v1::Tensor& tensor = *request.mutable_spec()->mutable_initial(0)->mutable_tensor();
  const std::string content = tensor.inline_();
  tensor.set_ref(Kept(*server_, content, As("ada")));
  EXPECT_TRUE(Rollout(request, "ada").ok());
  const grpc::Status stranger = Rollout(request, "eve");
  ExpectGone(stranger, "spec.initial[0].tensor.ref");
  v1::RolloutRequest unknown = request;
  unknown.mutable_spec()->mutable_initial(0)->mutable_tensor()->set_ref(std::string(32, 'x'));
  EXPECT_EQ(stranger.error_message(), Rollout(unknown, "eve").error_message());
  Kept(*server_, content, As("eve"));
  EXPECT_TRUE(Rollout(request, "eve").ok());
  EXPECT_EQ(Series(*server_, kContents), 2);
}

TEST_F(CallersUpload, WithoutATokenAreRefusedBeforeAnythingIsRead) {
  const Uploaded uploaded = Upload(*server_, PiecesOf(std::string(4 * kMiB, 'a')));
  ExpectError(uploaded.status, grpc::StatusCode::UNAUTHENTICATED, "UNAUTHENTICATED", "");
  EXPECT_EQ(Series(*server_, kContents), 0);
  EXPECT_EQ(Handled(*server_, "Upload", "client_stream", "Unauthenticated"), 1);
}

TEST_F(CallersUpload, StayWithinTheirShare) {
  const grpc::Status status =
      Upload(*server_, PiecesOf(std::string(9 * kMiB, 'a')), As("ada")).status;
  ExpectError(status, grpc::StatusCode::RESOURCE_EXHAUSTED, "CALLER_LIMIT", "");
  EXPECT_TRUE(Upload(*server_, PiecesOf(std::string(9 * kMiB, 'a')), As("eve")).status.ok());
  for (const char fill : {'a', 'b', 'c', 'd'}) {
    Kept(*server_, std::string(3 * kMiB, fill), As("ada"));
  }
  EXPECT_EQ(Series(*server_, kContents), 3);  // two of ada's
}

// ---- Uploads that do not come to their end ----

class OpenUpload {
 public:
  OpenUpload(RunningServer& server, int64_t size, int64_t sent, const Asked& how = kPlain) {
    how(context_);
    writer_ = server.stub().Upload(&context_, &response_);
    v1::UploadRequest message;
    message.set_sha256(std::string(32, 'a'));
    message.set_size(size);
    for (; sent > 0; sent -= kMiB) {
      message.set_data(std::string(static_cast<size_t>(std::min(sent, kMiB)), 'a'));
      if (!writer_->Write(message)) break;
      message.Clear();
    }
  }
  ~OpenUpload() {
    context_.TryCancel();
    if (!finished_) writer_->Finish();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    finished_ = true;
    return writer_->Finish();
  }

 private:
  grpc::ClientContext context_;
  v1::UploadResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>> writer_;
  bool finished_ = false;
};

// What came of an upload before the server took its call, some 64 KiB, is counted as of those before.
TEST(UnfinishedUpload, CountsWithItsBytesUntilItsCallerLeaves) {
  RunningServer server;
  OpenUpload upload(server, 16 * kMiB, 8 * kMiB);
  EXPECT_TRUE(Eventually([&] { return Series(server, kUploadBytes) >= 7.0 * kMiB; }));
  upload.Cancel();
  EXPECT_EQ(upload.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Series(server, kUploadBytes) == 0; }));
  EXPECT_EQ(Series(server, kContents), 0);
}

TEST(UnfinishedUpload, IsGivenUpWhereAllTogetherHoldTooMuch) {
  config::ServerConfig config = FreePorts();
  config.memory_limit_bytes = 256 * kMiB;
  config.max_request_bytes = 32 * kMiB;
  RunningServer server(config);
  OpenUpload first(server, 31 * kMiB, 30 * kMiB);
  ASSERT_TRUE(Eventually([&] { return Series(server, kUploadBytes) >= 29.0 * kMiB; }));
  OpenUpload second(server, 31 * kMiB, 30 * kMiB);
  ASSERT_TRUE(Eventually([&] { return Series(server, kUploadBytes) >= 58.0 * kMiB; }));
  OpenUpload third(server, 31 * kMiB, 20 * kMiB);
  const grpc::Status status = first.Finish();
  ExpectError(status, grpc::StatusCode::RESOURCE_EXHAUSTED, "OUT_OF_MEMORY", "");
  EXPECT_TRUE(DetailsOf(status).has_retry);
  EXPECT_TRUE(Eventually([&] { return Series(server, kUploadBytes) <= 64.0 * kMiB; }));
}

TEST(UnfinishedUpload, EndsAtItsDeadlineAndAtTheServersLimitOfTime) {
  config::ServerConfig config = FreePorts();
  config.upload_timeout = absl::Milliseconds(300);
  RunningServer server(config);
  OpenUpload late(server, 2 * kMiB, kMiB, [](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  });
  EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  OpenUpload slow(server, 2 * kMiB, kMiB);
  ExpectError(slow.Finish(), grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE", "");
  EXPECT_TRUE(Eventually([&] { return Series(server, kUploadBytes) == 0; }));
  EXPECT_EQ(Series(server, kContents), 0);
}

TEST(UnfinishedUpload, IsRefusedByAServerThatDrains) {
  RunningServer server;
  Kept(server, "abc");
  server.server().Drain(absl::ZeroDuration());
  EXPECT_EQ(Upload(server, PiecesOf("abc")).status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace simgrad::server
