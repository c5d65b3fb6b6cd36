// Good requests beside something else: again and again, and always the same bits.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/server/deterministic_bytes.h"
#include "tests/server/running_server.h"

namespace simgrad::server {

// All that a complete answer says but for how long it took.
inline std::string BitsOf(const Answer<v1::RolloutPart>& answer) {
  v1::RolloutResult result = answer.result();
  result.clear_phase_seconds();
  return answer.header().program().fingerprint() + answer.trajectory("y") +
         DeterministicBytes(result);
}
inline std::string BitsOf(const Answer<v1::GradientPart>& answer) {
  v1::GradientResult result = answer.result();
  result.mutable_rollout()->clear_phase_seconds();
  return answer.header().program().fingerprint() + answer.trajectory("y") +
         DeterministicBytes(result);
}

class GoodRequests {
 public:
  static constexpr int64_t kSteps = 20;
  static constexpr int64_t kInstances = 16;
  // Of one round: a rollout and a gradient.
  static constexpr int64_t kForwardSteps = 2 * kSteps * kInstances;

  // Learns the bits from a first answer.
  explicit GoodRequests(RunningServer& server) : server_(server) {
    rollout_ = BallRollout(kSteps, kInstances);
    rollout_.mutable_spec()->add_record("y");
    gradient_ = BallGradient(kSteps, kInstances);
    gradient_.mutable_spec()->mutable_policy()->set_preset("bf16_safe");
    ++asked_;
    const auto rollout = Ask(server_, rollout_);
    const auto gradient = Ask(server_, gradient_);
    EXPECT_TRUE(rollout.status.ok()) << rollout.status.error_message();
    EXPECT_TRUE(gradient.status.ok()) << gradient.status.error_message();
    if (!rollout.status.ok() || !gradient.status.ok()) return;
    rollout_bits_ = BitsOf(rollout);
    gradient_bits_ = BitsOf(gradient);
  }
  ~GoodRequests() { End(); }

  // One round after the other, with a pause: what runs beside them is to get on.
  void Begin() {
    ending_ = false;
    thread_ = std::thread([this] {
      for (;;) {
        Once();
        ++rounds_;
        if (ending_) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  }
  // At least one round has been made since Begin.
  void End() {
    ending_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // One of each.
  void Once() {
    ++asked_;
    const auto rollout = Ask(server_, rollout_);
    EXPECT_TRUE(rollout.status.ok()) << rollout.status.error_message();
    EXPECT_TRUE(!rollout.status.ok() || BitsOf(rollout) == rollout_bits_);
    const auto gradient = Ask(server_, gradient_);
    EXPECT_TRUE(gradient.status.ok()) << gradient.status.error_message();
    EXPECT_TRUE(!gradient.status.ok() || BitsOf(gradient) == gradient_bits_);
  }
  int64_t rounds() const { return rounds_; }
  // Calls of each method so far.
  int64_t asked() const { return asked_; }

 private:
  RunningServer& server_;
  v1::RolloutRequest rollout_;
  v1::GradientRequest gradient_;
  std::string rollout_bits_, gradient_bits_;
  std::atomic<bool> ending_{false};
  std::atomic<int64_t> rounds_{0};
  std::atomic<int64_t> asked_{0};
  std::thread thread_;
};

}  // namespace simgrad::server
