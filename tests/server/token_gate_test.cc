// What a token file says of its callers, and what a caller is called.
#include "server/service/token_gate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "server/service/caller_identity.h"
#include "tests/eventually.h"

namespace simgrad::server::service {
namespace {

TEST(TokenLine, WithoutMoreIsATokenWithoutName) {
  const auto line = ParseTokenLine("  secret \r");
  ASSERT_TRUE(line.ok() && *line);
  EXPECT_EQ((*line)->token, "secret");
  EXPECT_EQ((*line)->owner.name, "");
  EXPECT_EQ((*line)->owner.limits, scheduling::CallerLimits());
}

TEST(TokenLine, SaysWhoseItIsAndHowMuchTheyMay) {
  const auto line = ParseTokenLine(
      "s3cret== name=team-a weight=2.5 requests=8 instance_steps_per_second=1e6 memory_bytes=4096");
  ASSERT_TRUE(line.ok() && *line) << line.status();
  EXPECT_EQ((*line)->token, "s3cret==");
  EXPECT_EQ((*line)->owner.name, "team-a");
  EXPECT_EQ((*line)->owner.limits.weight, 2.5);
  EXPECT_EQ((*line)->owner.limits.requests_in_flight, 8);
  EXPECT_EQ((*line)->owner.limits.instance_steps_per_second, 1e6);
  EXPECT_EQ((*line)->owner.limits.memory_bytes, 4096);
}

TEST(TokenLine, ThatIsEmptyOrACommentDoesNotCount) {
  for (const char* text : {"", "   ", "# name=x", "\t\r"}) {
    const auto line = ParseTokenLine(text);
    ASSERT_TRUE(line.ok()) << text;
    EXPECT_FALSE(line->has_value()) << text;
  }
}

TEST(TokenLine, WithAnythingElseIsRefusedWithWhatWouldBeRight) {
  for (const char* more : {"admin", "name=", "name=a/b", "weight=0", "weight=-1", "weight=nan",
                           "weight=inf", "requests=1.5", "requests=0", "memory_bytes=many",
                           "instance_steps_per_second=0", "colour=red", "weight=1 weight=2"}) {
    const auto line = ParseTokenLine(std::string("secret ") + more);
    EXPECT_TRUE(absl::IsInvalidArgument(line.status())) << more;
    EXPECT_NE(line.status().message().find("weight=NUMBER"), std::string::npos) << more;
    EXPECT_EQ(line.status().message().find("secret"), std::string::npos) << "tells the token";
  }
  for (const char* text :
       {"Bearer s3cret", "good s3cret", "good s3cret=", "good name=x s3cret=y"}) {
    const auto line = ParseTokenLine(text);
    EXPECT_TRUE(absl::IsInvalidArgument(line.status())) << text;
    EXPECT_EQ(line.status().message().find("s3cret"), std::string::npos) << line.status();
  }
  EXPECT_NE(ParseTokenLine("t weight=x").status().message().find("word 2 (weight)"),
            std::string::npos);
}

std::string Refused(const std::string& content) {
  const std::string path = testing::TempDir() + "/token_file_" + std::to_string(getpid());
  std::ofstream(path) << content;
  const absl::Status status = TokenGate::Create(path).status();
  return absl::IsInvalidArgument(status) ? std::string(status.message()) : "";
}

TEST(TokenLine, HoldsNoTokenThatNoCallCanCarry) {
  for (const char* text : {"\xEF\xBB\xBFsecret",
                           "s\xC3\xA9"
                           "cret name=a",
                           "se\x01"
                           "cret"}) {
    const auto line = ParseTokenLine(text);
    EXPECT_TRUE(absl::IsInvalidArgument(line.status()));
    EXPECT_NE(line.status().message().find("printable ASCII"), std::string::npos);
  }
}

TEST(TokenGate, RefusesAFileThatSaysTwoThings) {
  EXPECT_NE(Refused("a name=x\n\nb\na name=y\n").find("line 4, the token of line 1"),
            std::string::npos);
  EXPECT_NE(
      Refused("a name=x requests=2\nb name=x\n").find("line 2, name=x has other limits in line 1"),
      std::string::npos);
  EXPECT_EQ(Refused("a name=x requests=2\nb requests=2 name=x\n"), "") << "tokens that take turns";
  EXPECT_NE(Refused("a\nb requests=0\n").find("line 2, word 2 (requests)"), std::string::npos);
}

TEST(TokenGate, TellsWhoseTokenItIs) {
  const std::string path = testing::TempDir() + "/token_gate_" + std::to_string(getpid());
  std::ofstream(path) << "one name=first weight=3\ntwo\n";
  auto gate = TokenGate::Create(path);
  ASSERT_TRUE(gate.ok()) << gate.status();
  EXPECT_EQ((*gate)->names(), std::vector<std::string>{"first"});
  const auto first = (*gate)->Check("Bearer one");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->name, "first");
  EXPECT_EQ(first->limits.weight, 3);
  const auto second = (*gate)->Check("Bearer two");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->name.rfind("token-", 0), 0u) << second->name;
  EXPECT_EQ(second->name.find("two"), std::string::npos);
  EXPECT_TRUE(absl::IsUnauthenticated((*gate)->Check("Bearer three").status()));
  EXPECT_TRUE(absl::IsUnauthenticated((*gate)->Check("one").status()));
}

// As `cp -p`, `rsync -t` and archives leave it.
TEST(TokenGate, ReadsATextThatHasTheTimeOfTheOneBefore) {
  const std::filesystem::path path =
      testing::TempDir() + "/token_gate_time_" + std::to_string(getpid());
  std::ofstream(path) << "old name=a\n";
  const auto time = std::filesystem::last_write_time(path);
  auto gate = TokenGate::Create(path);
  ASSERT_TRUE(gate.ok()) << gate.status();
  EXPECT_TRUE((*gate)->Check("Bearer old").ok());
  const std::filesystem::path next = path.string() + ".next";
  std::ofstream(next) << "new name=a\n";
  std::filesystem::last_write_time(next, time);
  std::filesystem::rename(next, path);
  EXPECT_TRUE(Eventually([&] { return (*gate)->Check("Bearer new").ok(); }));
  EXPECT_TRUE(absl::IsUnauthenticated((*gate)->Check("Bearer old").status()));
  std::filesystem::remove(path);
}

TEST(AddressOf, IsThePeerWithoutItsPort) {
  EXPECT_EQ(AddressOf("ipv4:127.0.0.1:5000"), "127.0.0.1");
  EXPECT_EQ(AddressOf("ipv6:%5B::1%5D:5000"), "::/64");
  EXPECT_EQ(AddressOf("ipv6:[2001:db8:0:7::2]:5000"), "2001:db8:0:7::/64");
  EXPECT_EQ(AddressOf("ipv6:%5B2001:db8:0:7:a::3%5D:5001"), "2001:db8:0:7::/64");
  EXPECT_EQ(AddressOf("ipv6:%5Bfe80::1%252%5D:5000"), "fe80::/64");
  EXPECT_EQ(AddressOf("ipv6:[::ffff:127.0.0.1]:5000"), "127.0.0.1");
  EXPECT_EQ(AddressOf("unix:/tmp/socket"), "unix:/tmp/socket");
}

}  // namespace
}  // namespace simgrad::server::service
