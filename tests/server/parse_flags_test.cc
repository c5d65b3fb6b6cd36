#include "server/config/parse_flags.h"

#include <gtest/gtest.h>

namespace simgrad::server::config {
namespace {

TEST(ParseFlags, DefaultsListenOnLoopbackAtTheDocumentedPorts) {
  const auto config = ParseFlags({});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->address, "127.0.0.1");
  EXPECT_EQ(config->port, 8001);
  EXPECT_EQ(config->metrics_port, 8002);
  EXPECT_EQ(config->device, "auto");
}

TEST(ParseFlags, EveryFlagIsTaken) {
  const auto config =
      ParseFlags({"--port=0", "--metrics_port=9", "--address=0.0.0.0", "--device=cuda:1",
                  "--threads=3", "--workers=2", "--queue_capacity=5", "--memory_limit_bytes=1000",
                  "--drain_timeout=1m30s", "--near_band_ulps=2.5", "--max_message_bytes=65536",
                  "--max_steps=7", "--max_instances=8", "--program_cache_entries=4",
                  "--kernel_cache=/tmp/kernels", "--warm=true", "--fatal_exit_after=3s"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->port, 0);
  EXPECT_EQ(config->metrics_port, 9);
  EXPECT_EQ(config->address, "0.0.0.0");
  EXPECT_EQ(config->device, "cuda:1");
  EXPECT_EQ(config->threads, 3);
  EXPECT_EQ(config->workers, 2);
  EXPECT_EQ(config->queue_capacity, 5);
  EXPECT_EQ(config->memory_limit_bytes, 1000);
  EXPECT_EQ(config->drain_timeout, absl::Seconds(90));
  EXPECT_EQ(config->near_band_ulps, 2.5);
  EXPECT_EQ(config->max_message_bytes, 65536);
  EXPECT_EQ(config->max_steps, 7);
  EXPECT_EQ(config->max_instances, 8);
  EXPECT_EQ(config->program_cache_entries, 4);
  EXPECT_EQ(config->kernel_cache, "/tmp/kernels");
  EXPECT_TRUE(config->warm);
  EXPECT_EQ(config->fatal_exit_after, absl::Seconds(3));
}

struct BadFlag {
  const char* argument;
  const char* told;  // part of the message
};

TEST(ParseFlags, AnythingElseIsAnErrorThatSaysWhatWouldBeRight) {
  const BadFlag bad[] = {
      {"--prot=1", "unknown flag '--prot'"},
      {"8001", "unexpected argument '8001'"},
      {"-port=1", "unexpected argument"},
      {"--port", "needs a value"},
      {"--port=", "from 0 to 65535"},
      {"--port=65536", "from 0 to 65535"},
      {"--port=-1", "from 0 to 65535"},
      {"--port=1x", "from 0 to 65535"},
      {"--device=gpu", "auto, cpu, cuda or cuda:N"},
      {"--device=cuda:", "auto, cpu, cuda or cuda:N"},
      {"--device=cuda:-1", "auto, cpu, cuda or cuda:N"},
      {"--threads=-1", "from 0"},
      {"--drain_timeout=30", "duration"},
      {"--near_band_ulps=nan", "finite"},
      {"--max_message_bytes=10", "from 65536"},
      {"--max_steps=0", "from 1"},
      {"--address=", "address"},
      {"--warm=yes", "true or false"},
      {"--fatal_exit_after=10", "duration"},
  };
  for (const BadFlag& flag : bad) {
    const auto config = ParseFlags({flag.argument});
    ASSERT_FALSE(config.ok()) << flag.argument;
    EXPECT_NE(std::string(config.status().message()).find(flag.told), std::string::npos)
        << flag.argument << ": " << config.status();
  }
}

TEST(ParseFlags, AFlagGivenTwiceIsAnError) {
  EXPECT_FALSE(ParseFlags({"--port=1", "--port=1"}).ok());
}

TEST(ParseFlags, HelpNamesEveryFlag) {
  const std::string help = FlagsHelp();
  for (const char* name :
       {"--port", "--metrics_port", "--address", "--device", "--threads", "--workers",
        "--queue_capacity", "--memory_limit_bytes", "--drain_timeout", "--near_band_ulps",
        "--max_message_bytes", "--max_steps", "--max_instances", "--program_cache_entries",
        "--kernel_cache", "--warm", "--fatal_exit_after"}) {
    EXPECT_NE(help.find(std::string(name) + "="), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace simgrad::server::config
