// Whatever ends a call early, in whatever it is doing: the right status, worker and memory back
// within a second (with slack where other work shares the machine), and good requests beside it
// unchanged.
//
// A cell is a method, what it was doing, and what ended it. Cells that cannot be are listed with
// the reason, and counted.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/environment.h"
#include "tests/server/blocker.h"
#include "tests/server/good_requests.h"
#include "tests/server/largest_program.h"
#include "tests/server/running_server.h"
#include "tests/server/spare_time.h"
#include "tests/server/victim_call.h"

namespace simgrad::server {
namespace {

enum class Phase { kQueued, kPreparing, kForward, kRecompute, kAdjoint, kStreaming };
enum class Way { kCancel, kDeadline, kKilledClient, kStoppedReader };

// Of the methods that take work. GetServerInfo and ListWorlds answer from what the server holds, on the
// thread that took the call: they have no phase in which something could end them.
constexpr int kRpcCount = 6;
const char* const kPhases[] = {"Queued",    "Preparing", "Forward",
                               "Recompute", "Adjoint",   "Streaming"};
const char* const kWays[] = {"Cancel", "Deadline", "KilledClient", "StoppedReader"};

struct Cell {
  Rpc rpc;
  Phase phase;
  Way way;
  std::string rpc_name() const { return NameOf(rpc); }
  // Those are queued where requests are prepared, and run nothing.
  bool has_one_answer() const { return rpc == Rpc::kDescribe || rpc == Rpc::kUpload; }
  std::string name() const {
    return rpc_name() + kPhases[static_cast<int>(phase)] + kWays[static_cast<int>(way)];
  }
};

// Empty where it can be.
std::string WhyImpossible(const Cell& cell) {
  const bool runs = cell.phase != Phase::kQueued && cell.phase != Phase::kPreparing;
  if (cell.has_one_answer() && runs) return "nothing runs, and the answer is one message";
  if (cell.rpc == Rpc::kUpload && cell.phase == Phase::kPreparing) {
    return "content is hashed within a moment, which preparation_looks_test ends";
  }
  if (cell.rpc == Rpc::kRollout &&
      (cell.phase == Phase::kRecompute || cell.phase == Phase::kAdjoint)) {
    return "a rollout has no reverse pass";
  }
  if (cell.rpc == Rpc::kVjp && cell.phase == Phase::kForward) {
    return "the forward pass of a reversal was made by the rollout that was kept";
  }
  if (cell.way == Way::kStoppedReader && !runs) {
    return "nothing was sent yet, so a caller that waits is no reader that stopped";
  }
  if (cell.way == Way::kStoppedReader && cell.rpc == Rpc::kVjp && cell.phase != Phase::kStreaming) {
    return "a reversal sends progress alone until it is done";
  }
  if (cell.way == Way::kStoppedReader && cell.phase == Phase::kRecompute) {
    return "a reverse pass sends progress alone, which never waits for a reader: what was sent "
           "before "
           "it is noticed by the clock in either half, here in the adjoint";
  }
  return "";
}

std::vector<Cell> AllCells() {
  std::vector<Cell> cells;
  for (int rpc = 0; rpc < kRpcCount; ++rpc) {
    for (int phase = 0; phase < 6; ++phase) {
      for (int way = 0; way < 4; ++way) {
        cells.push_back({static_cast<Rpc>(rpc), static_cast<Phase>(phase), static_cast<Way>(way)});
      }
    }
  }
  return cells;
}

std::vector<Cell> PossibleCells() {
  std::vector<Cell> cells;
  for (const Cell& cell : AllCells()) {
    if (WhyImpossible(cell).empty()) cells.push_back(cell);
  }
  return cells;
}

// A deadline that is to fall into a phase is searched for, again and again. A variant that runs is the
// gradient that it is, so these of Compare are left to the long run.
std::vector<Cell> TestedCells() {
  std::vector<Cell> cells = PossibleCells();
  if (IsLong()) return cells;
  std::erase_if(cells, [](const Cell& cell) {
    return cell.rpc == Rpc::kCompare && cell.way == Way::kDeadline &&
           cell.phase >= Phase::kRecompute;
  });
  return cells;
}

// ---- Requests that stay where they are held ----

v1::GradientRequest EndlessGradient() {
  v1::GradientRequest request;
  *request.mutable_spec() = EndlessRollout().spec();
  request.mutable_spec()->set_steps(1'000'000);
  request.mutable_spec()->set_objective("final_height");
  (*request.mutable_spec()->mutable_world()->mutable_config())["clamp"].set_flag(false);
  return request;
}

// A forward pass that is replayed to its end before the reverse pass begins, which is some times
// longer.
v1::GradientRequest LongReverse() {
  constexpr int64_t kSteps = 100'000;
  v1::GradientRequest request = BallGradient(kSteps, 256);
  v1::RolloutSpec* spec = request.mutable_spec();
  spec->set_chunk_steps(16);
  spec->set_checkpoint_interval(kSteps);
  spec->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_OFF);
  return request;
}

// More than a window and an outbox hold, long before its last step.
void RecordMuch(v1::RolloutSpec& spec) {
  spec.add_record("y");
  spec.set_chunk_steps(16);
}

// Little work, and final states of 8 MB.
v1::RolloutSpec LargeStates() {
  constexpr int64_t kElements = 65536;
  v1::RolloutSpec spec = BallSpec(1);
  (*spec.mutable_world()->mutable_config())["elements"].set_number(kElements);
  spec.set_instances(16);
  for (int i = 0; i < 2; ++i) {
    SetDoubles(std::vector<double>(kElements, 0.5), {kElements},
               *spec.mutable_initial(i)->mutable_tensor());
  }
  return spec;
}

// x runs long in both directions; y is 3 MB to tell: more than a window of HTTP/2, less than may
// wait.
constexpr int64_t kTellingSteps = 48'000;
v1::GradientRequest LongReverseThatTells() {
  sim::Builder b("tells");
  const sim::Var x = b.State("x", {256});
  const sim::Var t = b.State("y", {64});
  sim::Var next = x;
  // Its derivative takes what it gave, so that the reverse pass runs it once more.
  for (int i = 0; i < 8; ++i) next = b.Apply(sim::OpCode::kTanh, {next}) + b.Literal(0.001);
  b.SetNext({next, t + b.Literal(1.0)});
  b.AddObjective("last", nullptr,
                 [&](const sim::Vars& states, const sim::Vars&) { return b.Mean(states[0]); });
  const auto program = b.Finish();
  EXPECT_TRUE(program.ok()) << program.status();
  v1::GradientRequest request;
  v1::RolloutSpec* spec = request.mutable_spec();
  *spec->mutable_world()->mutable_program() = conversion::ProgramToProto(*program);
  spec->set_steps(kTellingSteps);
  spec->set_objective("last");
  spec->set_chunk_steps(16);
  spec->add_record("y");
  spec->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_OFF);
  AddTensor(spec->mutable_initial(), "x", std::vector<double>(256, 0.25), {256});
  AddTensor(spec->mutable_initial(), "y", std::vector<double>(64, 0.0), {64});
  return request;
}

template <class Spoil>
std::string RolloutOrGradient(Rpc rpc, v1::RolloutSpec spec, Spoil spoil) {
  spoil(spec);
  if (rpc == Rpc::kRollout) {
    v1::RolloutRequest request;
    *request.mutable_spec() = std::move(spec);
    return request.SerializeAsString();
  }
  v1::GradientRequest request;
  *request.mutable_spec() = std::move(spec);
  request.mutable_spec()->set_objective("final_height");
  (*request.mutable_spec()->mutable_world()->mutable_config())["clamp"].set_flag(false);
  return request.SerializeAsString();
}

// Long to prepare, and then long to run.
std::string LargestRequest(Rpc rpc) {
  if (rpc == Rpc::kDescribe) {
    v1::DescribeProgramRequest request;
    *request.mutable_world()->mutable_program() = LargestProgram(0.5);
    request.set_objective("last");
    request.set_adjoint(true);
    return request.SerializeAsString();
  }
  v1::GradientRequest gradient = LargestGradient(0.5);
  gradient.mutable_spec()->set_steps(100'000);
  gradient.mutable_spec()->mutable_diagnostics()->set_level(v1::DIAGNOSTICS_LEVEL_OFF);
  if (rpc == Rpc::kGradient) return gradient.SerializeAsString();
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = gradient.spec();
  return rollout.SerializeAsString();
}

// The gradient whose rollout is kept to be reversed.
v1::GradientRequest KeptGradient(Phase phase) {
  if (phase == Phase::kPreparing) return LargestGradient(0.5);
  if (phase != Phase::kStreaming) return LongReverse();
  v1::GradientRequest request;
  request.ParseFromString(
      RolloutOrGradient(Rpc::kGradient, LargeStates(), [](v1::RolloutSpec&) {}));
  return request;
}

// Keeps a rollout first.
std::string ReversalOf(RunningServer& server, Phase phase) {
  v1::RolloutRequest rollout;
  *rollout.mutable_spec() = KeptGradient(phase).spec();
  rollout.mutable_keep();
  const auto kept = Ask(server, rollout);
  EXPECT_TRUE(kept.status.ok()) << kept.status.error_message();
  v1::VjpRequest request;
  if (!kept.status.ok()) return "";
  request.set_handle(kept.result().kept().handle());
  EXPECT_FALSE(request.handle().empty());
  if (phase == Phase::kPreparing) {  // an adjoint that was not kept for
    const v1::NamedTensor& state = rollout.spec().initial(0);
    request.add_wrt()->set_kind(v1::INPUT_KIND_STATE);
    request.mutable_wrt(0)->set_name(state.name());
  }
  return request.SerializeAsString();
}

// A whole upload of three bytes.
std::string WholeUpload() {
  constexpr unsigned char kDigestOfAbc[] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea,
                                            0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
                                            0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c,
                                            0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
  v1::UploadRequest request;
  request.set_sha256(kDigestOfAbc, sizeof kDigestOfAbc);
  request.set_size(3);
  request.set_data("abc");
  return request.SerializeAsString();
}

std::string RequestOf(const Cell& cell, RunningServer& server);

// The variant is what the gradient of such a cell is, and its reference is short.
std::string ComparisonOf(Cell cell, RunningServer& server) {
  cell.rpc = Rpc::kGradient;
  v1::CompareRequest request;
  request.mutable_gradient()->ParseFromString(RequestOf(cell, server));
  v1::RolloutSpec& spec = *request.mutable_gradient()->mutable_spec();
  request.set_without_paths(true);
  request.add_variants()->set_steps(spec.steps());
  spec.set_steps(0);
  return request.SerializeAsString();
}

std::string RequestOf(const Cell& cell, RunningServer& server) {
  if (cell.rpc == Rpc::kCompare) return ComparisonOf(cell, server);
  if (cell.rpc == Rpc::kUpload) return WholeUpload();
  if (cell.rpc == Rpc::kVjp) return ReversalOf(server, cell.phase);
  const bool rollout = cell.rpc == Rpc::kRollout;
  switch (cell.phase) {
    case Phase::kQueued:
      if (cell.rpc == Rpc::kDescribe) return LargestRequest(cell.rpc);
      return rollout ? EndlessRollout().SerializeAsString() : EndlessGradient().SerializeAsString();
    case Phase::kPreparing:
      return LargestRequest(cell.rpc);
    case Phase::kForward:
      if (cell.way == Way::kStoppedReader) {
        return RolloutOrGradient(cell.rpc, BallSpec(4000, 512), RecordMuch);
      }
      return rollout ? EndlessRollout().SerializeAsString() : EndlessGradient().SerializeAsString();
    case Phase::kRecompute:
      return LongReverse().SerializeAsString();
    case Phase::kAdjoint:
      if (cell.way == Way::kStoppedReader) return LongReverseThatTells().SerializeAsString();
      return LongReverse().SerializeAsString();
    case Phase::kStreaming:
      return RolloutOrGradient(cell.rpc, LargeStates(), [](v1::RolloutSpec&) {});
  }
  return "";
}

// ---- What the server says of it ----

// Exact in the long run. Otherwise with fivefold slack for a machine that does other work, and still
// far from what any of these calls would take by itself.
absl::Duration GivenBackWithin() { return absl::Seconds(IsLong() ? 1 : 5); }

using SeriesValues = std::map<std::string, double>;

double SumOf(const SeriesValues& values, const std::string& family, const std::string& label) {
  double sum = 0;
  for (const auto& [series, value] : values) {
    if (series.rfind(family + "{", 0) == 0 && series.find(label) != std::string::npos) sum += value;
  }
  return sum;
}

class CancelMatrix : public ::testing::TestWithParam<Cell> {
 protected:
  const Cell& cell() const { return GetParam(); }

  static config::ServerConfig Config(const Cell& cell, absl::Duration slow_reader_timeout) {
    config::ServerConfig config = FreePorts();
    config.max_message_bytes = config::kSmallestMessageLimit;
    if (cell.phase == Phase::kQueued) config.workers = 1;
    if (cell.way == Way::kStoppedReader) {
      config.slow_reader_timeout = slow_reader_timeout;
      config.min_read_bytes_per_second = int64_t{16} << 20;  // a message in a quarter of a second
      if (cell.phase == Phase::kAdjoint) config.max_message_bytes = int64_t{4} << 20;
    }
    return config;
  }

  // Calls of the method that ended, by how; good requests end as OK.
  double EndedEarly() {
    double ended = 0;
    const SeriesValues values = server_->Series();
    for (const char* code : {"Canceled", "DeadlineExceeded", "ResourceExhausted"}) {
      ended += SumOf(values, "grpc_server_handled_total",
                     "grpc_code=\"" + std::string(code) + "\",grpc_method=\"" + cell().rpc_name());
    }
    return ended;
  }
  double Started() {
    return SumOf(server_->Series(), "grpc_server_started_total",
                 "grpc_method=\"" + cell().rpc_name() + "\"");
  }
  // Of these, the good requests.
  double GoodOnes() const {
    const bool asked = cell().rpc == Rpc::kRollout || cell().rpc == Rpc::kGradient;
    return asked ? static_cast<double>(good_->asked()) : 0;
  }
  double Handled() {
    return SumOf(server_->Series(), "grpc_server_handled_total",
                 "grpc_method=\"" + cell().rpc_name() + "\"");
  }
  // In which phase the server says that the victim was lost; empty: not (yet).
  std::string LostIn() {
    for (const char* family :
         {"simgrad_rpc_cancelled_total", "simgrad_rpc_deadline_exceeded_total"}) {
      for (const auto& [series, value] : server_->Series()) {
        if (series.rfind(family, 0) != 0 || value == before_[series]) continue;
        if (series.find("grpc_method=\"" + cell().rpc_name()) == std::string::npos) continue;
        const size_t at = series.find("phase=\"") + 7;
        return series.substr(at, series.find('"', at) - at);
      }
    }
    return "";
  }
  std::string ExpectedLoss() const {
    const char* const names[] = {"queued", "queued", "forward", "adjoint", "adjoint", "stream"};
    return names[static_cast<int>(cell().phase)];
  }

  VictimOptions Options() const {
    VictimOptions options;
    options.rpc = cell().rpc;
    options.request = request_;
    options.port = server_->server().port();
    if (cell().phase == Phase::kStreaming) options.reads_until = Stage::kPieces;
    if (cell().way == Way::kStoppedReader && cell().phase != Phase::kStreaming) {
      options.reads_until = Stage::kNone;
    }
    return options;
  }

  // Whether the victim is where it is to be ended; false also once it is past that.
  bool IsHeld(const Victim& victim) const {
    const service::Server& server = server_->server();
    switch (cell().phase) {
      case Phase::kQueued:
        return cell().has_one_answer() ? server.preparation().waiting() > 0
                                       : server.queue().waiting() > 0;
      case Phase::kPreparing:
        return server.preparation().running() > 0;
      case Phase::kForward:
        return victim.stage() == Stage::kForward;
      case Phase::kRecompute: {
        const bool reversal = cell().rpc == Rpc::kVjp;
        return Recomputed() > 0 &&
               victim.stage() == (reversal ? Stage::kNone : Stage::kForwardDone);
      }
      case Phase::kAdjoint:
        return victim.stage() == Stage::kAdjoint;
      case Phase::kStreaming:
        return victim.stage() == Stage::kPieces;
    }
    return false;
  }
  // Since the victim was asked for.
  double Recomputed() const {
    const std::string series = "simgrad_steps_total{direction=\"recompute\"}";
    return server_->Series().at(series) - before_.at(series);
  }
  double StepsDone() const {
    return server_->Series().at("simgrad_steps_total{direction=\"forward\"}");
  }
  // As Eventually, and longer as long as steps are done: large work gives way to whatever else runs
  // on the machine (nice), so what takes a second alone may take minutes.
  bool EventuallyOrStuck(const std::function<bool()>& holds) const {
    for (double done = -1; !Eventually(holds);) {
      const double before = std::exchange(done, StepsDone());
      if (done == before) return false;
    }
    return true;
  }
  // Says that the phase is over. All its steps may be done before this thread gets its turn.
  bool IsPast(const Victim& victim) const {
    switch (cell().phase) {
      case Phase::kForward:
        return victim.stage() > Stage::kForward;
      case Phase::kRecompute:
        return victim.stage() > Stage::kForwardDone;
      case Phase::kAdjoint:
        return victim.stage() > Stage::kAdjoint;
      default:
        return victim.ended();
    }
  }
  enum class Hold { kHeld, kPast, kStuck };
  Hold AwaitHold(const Victim& victim) const {
    const bool moved =
        EventuallyOrStuck([&] { return IsHeld(victim) || IsPast(victim) || victim.ended(); });
    if (IsHeld(victim)) return Hold::kHeld;
    if (moved && IsPast(victim)) return Hold::kPast;
    ADD_FAILURE() << "stage " << static_cast<int>(victim.stage())
                  << (victim.ended() ? ", ended, " : ", ") << StepsDone() << " steps done";
    return Hold::kStuck;
  }
  // A victim in its phase, with good requests beside it. One that was too quick for this thread is
  // followed by another, on a new server. Null where one is stuck, or all were too quick.
  template <class SomeVictim>
  std::unique_ptr<SomeVictim> HeldVictim() {
    for (int attempt = 0; attempt < 10; ++attempt) {
      StartServer();
      Occupy();
      auto victim = std::make_unique<SomeVictim>(Options());
      const Hold hold = AwaitHold(*victim);
      if (hold == Hold::kStuck) return nullptr;
      if (hold == Hold::kHeld) {
        good_->Begin();
        if (IsHeld(*victim)) return victim;
      }
      victim.reset();
      blockers_.clear();
      held_.clear();
      good_->End();
    }
    ADD_FAILURE() << "no victim was seen in its phase";
    return nullptr;
  }

  void StartServer(absl::Duration slow_reader_timeout = absl::Seconds(60)) {
    server_ = std::make_unique<RunningServer>(Config(cell(), slow_reader_timeout));
    request_ = RequestOf(cell(), *server_);
    good_ = std::make_unique<GoodRequests>(*server_);
    for (const auto& [series, value] : server_->Series()) before_[series] = value;
  }

  // What keeps a victim waiting.
  void Occupy() {
    if (cell().phase != Phase::kQueued) return;
    VictimOptions options;
    options.port = server_->server().port();
    if (!cell().has_one_answer()) {
      // Of the other method, which the victim's counters do not count.
      const bool rollout = cell().rpc == Rpc::kGradient;
      options.rpc = rollout ? Rpc::kRollout : Rpc::kGradient;
      options.request =
          rollout ? EndlessRollout().SerializeAsString() : EndlessGradient().SerializeAsString();
      blockers_.push_back(std::make_unique<LocalVictim>(options));
      // Its own word: a good request that just ended may still count as running.
      ASSERT_TRUE(Eventually([&] { return blockers_.back()->stage() == Stage::kForward; }));
      return;
    }
    scheduling::WorkQueue& preparation = server_->server().preparation();
    for (int i = 0; i < preparation.workers(); ++i) {
      held_.push_back(std::make_unique<scheduling::Blocker>(preparation));
    }
  }

  // From `since` on.
  void ExpectGivenBack(absl::Time since, absl::Duration within) {
    // A deadline is over for the caller a little earlier: then it may be answered well, once nothing holds it.
    const bool may_end_well = cell().has_one_answer() && cell().way == Way::kDeadline;
    EXPECT_TRUE(HoldsWithin(
        since, within, [&] { return may_end_well ? Handled() == Started() : EndedEarly() >= 1; }));
    blockers_.clear();
    held_.clear();
    good_->End();
    // What the others held has gone with them: what is left is the victim's.
    const absl::Time alone = absl::Now();
    const auto& queue = server_->server().queue();
    const auto& preparation = server_->server().preparation();
    EXPECT_TRUE(HoldsWithin(alone, GivenBackWithin(), [&] {
      return queue.memory_used_bytes() == 0 && queue.running() == 0 && queue.waiting() == 0 &&
             queue.busy() == 0 && preparation.running() == 0 && preparation.waiting() == 0 &&
             preparation.busy() == 0;
    }));
    EXPECT_EQ(SumOf(server_->Series(), "simgrad_queue_requests", ""), 0);
    EXPECT_TRUE(
        Eventually([&] { return SumOf(server_->Series(), "simgrad_rpc_in_flight", "") == 0; }));
    good_->Once();
  }
  void ExpectLostThere() {
    if (cell().has_one_answer()) return;
    EXPECT_EQ(LostIn(), ExpectedLoss());
  }

  void Cancel();
  void LetDeadlinePass();
  void KillClient();
  void StopReading();

  std::unique_ptr<RunningServer> server_;
  std::unique_ptr<GoodRequests> good_;
  std::vector<std::unique_ptr<LocalVictim>> blockers_;
  std::vector<std::unique_ptr<scheduling::Blocker>> held_;
  std::map<std::string, double> before_;  // every series, when the victim was asked for
  std::string request_;
};

void CancelMatrix::Cancel() {
  const auto victim = HeldVictim<LocalVictim>();
  ASSERT_NE(victim, nullptr);
  const absl::Time now = absl::Now();
  victim->Cancel();
  EXPECT_EQ(victim->End().error_code(), grpc::StatusCode::CANCELLED);
  ExpectGivenBack(now, GivenBackWithin());
  ExpectLostThere();
}

void CancelMatrix::KillClient() {
  const auto victim = HeldVictim<ForeignVictim>();
  ASSERT_NE(victim, nullptr);
  const absl::Time now = absl::Now();
  victim->Kill();
  ExpectGivenBack(now, GivenBackWithin());
  ExpectLostThere();
}

// Where a deadline falls is up to the machine, so one that falls into the phase is searched for.
void CancelMatrix::LetDeadlinePass() {
  double early = 0, late = 0;  // seconds, known to fall before and behind the phase
  double seconds = cell().phase == Phase::kPreparing ? 0.1 : 0.5;
  for (int attempt = 0; attempt < 40; ++attempt) {
    StartServer();
    Occupy();
    VictimOptions options = Options();
    options.deadline = std::chrono::milliseconds(static_cast<int64_t>(1e3 * seconds) + 1);
    const absl::Time due = absl::Now() + absl::Milliseconds(options.deadline->count());
    LocalVictim victim(options);
    good_->Begin();
    // What does not read is not told of its end.
    while (absl::Now() < due && !victim.ended()) absl::SleepFor(absl::Milliseconds(1));
    const Stage seen = victim.stage();
    const grpc::Status status = victim.End();
    if (status.ok()) {
      late = seconds;
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
      blockers_.clear();
      held_.clear();
      good_->End();
      const bool arrived = Started() - GoodOnes() >= 1;
      if (arrived && cell().has_one_answer()) return ExpectGivenBack(due, GivenBackWithin());
      ASSERT_TRUE(Eventually([&] { return Handled() == Started(); }));
      // A deadline that passes after the last byte left is late to the caller only.
      const bool sent_all = arrived && EndedEarly() == 0;
      const std::string lost = sent_all ? "sent" : arrived ? LostIn() : "before";
      const bool in_adjoint = seen >= Stage::kAdjoint;
      const bool right_half = cell().phase == Phase::kRecompute ? !in_adjoint
                              : cell().phase == Phase::kAdjoint ? in_adjoint
                                                                : true;
      if (lost == ExpectedLoss() && right_half) return ExpectGivenBack(due, GivenBackWithin());
      const std::vector<std::string> order = {"before",  "queued", "forward",
                                              "adjoint", "stream", "sent"};
      const auto place = [&](const std::string& name) {
        return std::find(order.begin(), order.end(), name) - order.begin();
      };
      const bool too_early =
          place(lost) < place(ExpectedLoss()) ||
          (lost == ExpectedLoss() && cell().phase == Phase::kAdjoint && !in_adjoint);
      (too_early ? early : late) = seconds;
    }
    blockers_.clear();
    held_.clear();
    good_->End();
    // A machine that was busier or quieter than before: begin again.
    if (late > 0 && late - early < 0.05 * late) early = late = 0;
    seconds = late > 0 ? (early + late) / 2 : std::max(0.05, 2 * early);
  }
  FAIL() << "no deadline fell into the phase";
}

void CancelMatrix::StopReading() {
  absl::Duration timeout = absl::Milliseconds(500);
  if (cell().phase == Phase::kAdjoint) {
    // Longer than what is left of the forward pass, shorter than the reverse one.
    StartServer();
    VictimOptions options = Options();
    options.reads_until = Stage::kEnded;
    LocalVictim measured(options);
    const absl::Time started = absl::Now();
    ASSERT_TRUE(EventuallyOrStuck([&] { return measured.stage() >= Stage::kForwardDone; }));
    timeout = 1.2 * (absl::Now() - started);
    measured.Cancel();
    measured.End();
  }
  // In the adjoint: a machine that became busier may still be in its forward pass by then.
  for (int attempt = 0; attempt < 10; ++attempt, timeout *= 1.4) {
    StartServer(timeout);
    absl::Time start = absl::Now();
    LocalVictim victim(Options());
    if (cell().phase == Phase::kStreaming) {
      ASSERT_EQ(AwaitHold(victim), Hold::kHeld);
      start = absl::Now();
    }
    good_->Begin();
    ExpectGivenBack(start, 4 * timeout + GivenBackWithin());
    EXPECT_EQ(SumOf(server_->Series(), "grpc_server_handled_total",
                    "grpc_code=\"ResourceExhausted\",grpc_method=\"" + cell().rpc_name()),
              1);
    const double steps =
        StepsDone() - static_cast<double>(GoodRequests::kForwardSteps * good_->asked());
    if (cell().phase != Phase::kAdjoint || steps >= kTellingSteps || HasFailure()) return;
  }
  FAIL() << "it was never given up in the adjoint";
}

TEST_P(CancelMatrix, GivesBackAtOnceAndHarmsNoOther) {
  switch (cell().way) {
    case Way::kCancel:
      return Cancel();
    case Way::kDeadline:
      return LetDeadlinePass();
    case Way::kKilledClient:
      return KillClient();
    case Way::kStoppedReader:
      return StopReading();
  }
}

INSTANTIATE_TEST_SUITE_P(Cells, CancelMatrix, ::testing::ValuesIn(TestedCells()),
                         [](const auto& param) { return param.param.name(); });

TEST(CancelMatrixTable, CellsThatCannotBeHaveAReason) {
  std::set<std::string> reasons;
  for (const Cell& cell : AllCells()) {
    if (!WhyImpossible(cell).empty()) reasons.insert(WhyImpossible(cell));
  }
  EXPECT_EQ(AllCells().size(), 144u);
  EXPECT_EQ(PossibleCells().size(), 81u);
  EXPECT_EQ(TestedCells().size(), IsLong() ? 81u : 78u);
  EXPECT_EQ(reasons.size(), 7u);
}

}  // namespace
}  // namespace simgrad::server

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--victim") {
    return simgrad::server::RunForeignVictim(argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
