#include "server/config/parse_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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
  const auto config = ParseFlags({"--port=0",
                                  "--metrics_port=9",
                                  "--address=0.0.0.0",
                                  "--device=cuda:1",
                                  "--threads=3",
                                  "--workers=2",
                                  "--queue_capacity=5",
                                  "--memory_limit_bytes=20000000",
                                  "--min_read_bytes_per_second=77",
                                  "--callers=a,b",
                                  "--drain_timeout=1m30s",
                                  "--near_band_ulps=2.5",
                                  "--max_message_bytes=65536",
                                  "--max_request_bytes=70000",
                                  "--slow_reader_timeout=5s",
                                  "--max_steps=7",
                                  "--max_instances=8",
                                  "--program_cache_entries=4",
                                  "--tls_certificate=a",
                                  "--tls_key=b",
                                  "--tls_client_ca=c",
                                  "--tls_reload_interval=2s",
                                  "--allow_insecure_metrics=true",
                                  "--health_port=10",
                                  "--reflection=false",
                                  "--channelz=true",
                                  "--max_metadata_bytes=2048",
                                  "--max_concurrent_streams=3",
                                  "--max_connection_age=1h",
                                  "--kernel_cache=/tmp/kernels",
                                  "--warm=true",
                                  "--fatal_exit_after=3s",
                                  "--self_check_interval=1m",
                                  "--log_level=warning",
                                  "--log_lines_per_second=7",
                                  "--otlp_endpoint=[::1]:4317",
                                  "--otlp_ca=e"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->port, 0);
  EXPECT_EQ(config->metrics_port, 9);
  EXPECT_EQ(config->address, "0.0.0.0");
  EXPECT_EQ(config->device, "cuda:1");
  EXPECT_EQ(config->threads, 3);
  EXPECT_EQ(config->workers, 2);
  EXPECT_EQ(config->queue_capacity, 5);
  EXPECT_EQ(config->memory_limit_bytes, 20'000'000);
  EXPECT_EQ(config->min_read_bytes_per_second, 77);
  EXPECT_EQ(config->callers, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config->drain_timeout, absl::Seconds(90));
  EXPECT_EQ(config->near_band_ulps, 2.5);
  EXPECT_EQ(config->max_message_bytes, 65536);
  EXPECT_EQ(config->max_request_bytes, 70000);
  EXPECT_EQ(config->max_steps, 7);
  EXPECT_EQ(config->max_instances, 8);
  EXPECT_EQ(config->program_cache_entries, 4);
  EXPECT_EQ(config->tls_certificate, "a");
  EXPECT_EQ(config->tls_key, "b");
  EXPECT_EQ(config->tls_client_ca, "c");
  EXPECT_EQ(config->tls_reload_interval, absl::Seconds(2));
  EXPECT_FALSE(config->allow_insecure);
  EXPECT_TRUE(config->allow_insecure_metrics);
  EXPECT_EQ(config->health_port, 10);
  EXPECT_FALSE(config->reflection);
  EXPECT_TRUE(config->channelz);
  EXPECT_EQ(config->max_metadata_bytes, 2048);
  EXPECT_EQ(config->max_concurrent_streams, 3);
  EXPECT_EQ(config->max_connection_age, absl::Hours(1));
  EXPECT_EQ(config->kernel_cache, "/tmp/kernels");
  EXPECT_TRUE(config->warm);
  EXPECT_EQ(config->fatal_exit_after, absl::Seconds(3));
  EXPECT_EQ(config->self_check_interval, absl::Minutes(1));
  EXPECT_EQ(config->log_level, "warning");
  EXPECT_EQ(config->log_lines_per_second, 7);
  EXPECT_EQ(config->slow_reader_timeout, absl::Seconds(5));
  EXPECT_EQ(config->otlp_endpoint, "[::1]:4317");
  EXPECT_EQ(config->otlp_ca, "e");
}

TEST(ParseFlags, PlaintextBeyondLoopbackIsServedOnlyWhereItIsAllowed) {
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "host.example", "127.host.example"}) {
    const std::string flag = std::string("--address=") + address;
    EXPECT_FALSE(ParseFlags({flag}).ok()) << address;
    EXPECT_FALSE(ParseFlags({flag, "--allow_insecure_metrics=true"}).ok()) << address;
    EXPECT_TRUE(ParseFlags({flag, "--allow_insecure=true"}).ok()) << address;
    EXPECT_FALSE(ParseFlags({flag, "--tls_certificate=a", "--tls_key=b"}).ok()) << address;
    EXPECT_TRUE(
        ParseFlags({flag, "--tls_certificate=a", "--tls_key=b", "--allow_insecure_metrics=true"})
            .ok())
        << address;
  }
  for (const char* address : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(ParseFlags({std::string("--address=") + address}).ok()) << address;
  }
}

TEST(ParseFlags, ZeroTurnsTheCheckOfTheServerItselfOff) {
  EXPECT_EQ(ParseFlags({})->self_check_interval, absl::Seconds(10));
  EXPECT_EQ(ParseFlags({"--self_check_interval=0"})->self_check_interval, absl::InfiniteDuration());
}

TEST(HostFromHere, IsLoopbackWhereEveryAddressIsListenedOn) {
  EXPECT_EQ(HostFromHere("0.0.0.0"), "127.0.0.1");
  EXPECT_EQ(HostFromHere("::"), "::1");
  EXPECT_EQ(HostFromHere("10.1.2.3"), "10.1.2.3");
}

TEST(ParseFlags, AnActionIsTakenOutOfTheFlags) {
  std::vector<std::string> arguments = {"--port=1", "--healthcheck"};
  EXPECT_EQ(TakeAction(arguments), Action::kHealthCheck);
  EXPECT_EQ(arguments, std::vector<std::string>{"--port=1"});
  EXPECT_EQ(TakeAction(arguments), Action::kServe);
}

TEST(ParseFlags, TheVersionIsAskedForWithoutServing) {
  std::vector<std::string> arguments = {"--version"};
  EXPECT_EQ(TakeAction(arguments), Action::kVersion);
  EXPECT_TRUE(arguments.empty());
}

TEST(Warnings, TokensInTheClearBeyondLoopbackAreWarnedOf) {
  const std::vector<std::string> open = {"--token_file=t", "--address=0.0.0.0",
                                         "--allow_insecure=true"};
  const std::vector<std::string> warnings = Warnings(*ParseFlags(open));
  ASSERT_EQ(warnings.size(), 1u);
  for (const char* told : {"--token_file", "--address=0.0.0.0", "--tls_certificate"}) {
    EXPECT_NE(warnings[0].find(told), std::string::npos) << warnings[0];
  }
  const std::vector<std::vector<std::string>> fine = {
      {"--token_file=t"},
      {"--address=0.0.0.0", "--allow_insecure=true"},
      {"--token_file=t", "--address=0.0.0.0", "--tls_certificate=a", "--tls_key=b",
       "--allow_insecure_metrics=true"}};
  for (const auto& arguments : fine) EXPECT_TRUE(Warnings(*ParseFlags(arguments)).empty());
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
      {"--memory_limit_bytes=16777215", "0, or at least 16777216 bytes"},
      {"--memory_limit_bytes=-1", "0, or at least"},
      {"--callers=", "names of callers"},
      {"--drain_timeout=30", "duration"},
      {"--near_band_ulps=nan", "finite"},
      {"--max_message_bytes=10", "from 65536"},
      {"--max_request_bytes=10", "from 65536"},
      {"--max_steps=0", "from 1"},
      {"--address=", "address"},
      {"--tls_certificate=a", "--tls_key"},
      {"--tls_key=a", "--tls_certificate"},
      {"--tls_client_ca=a", "--tls_certificate"},
      {"--tls_reload_interval=0s", "from 1s"},
      {"--token_file=", "path"},
      {"--allow_insecure=yes", "true or false"},
      {"--max_connection_age=0.5s", "or 0 for never"},
      {"--health_port=-1", "from 0 to 65535"},
      {"--warm=yes", "true or false"},
      {"--kept_run_ttl=0s", "from 1s"},
      {"--kept_run_ttl=600", "duration"},
      {"--kept_run_bytes=-1", "from 0"},
      {"--replica=a/b", "letters, digits"},
      {"--fatal_exit_after=10", "duration"},
      {"--self_check_interval=1ms", "a duration from 100ms to 24h, or 0 for never"},
      {"--log_level=debug", "info, warning or error"},
      {"--otlp_endpoint=collector", "HOST:PORT"},
      {"--otlp_endpoint=:4317", "HOST:PORT"},
      {"--otlp_endpoint=collector:0", "HOST:PORT"},
      {"--otlp_endpoint=collector: 4317", "HOST:PORT"},
      {"--otlp_endpoint=collector:+4317", "HOST:PORT"},
      {"--otlp_endpoint=collector:65536", "HOST:PORT"},
      {"--otlp_endpoint=http://collector:4317", "without a scheme"},
      {"--otlp_endpoint=::1:4317", "[::1]:4317"},
      {"--otlp_endpoint=[collector]:4317", "[::1]:4317"},
      {"--otlp_ca=", "path"},
      {"--otlp_ca=ca.pem", "--otlp_endpoint"},
  };
  for (const BadFlag& flag : bad) {
    const auto config = ParseFlags({flag.argument});
    ASSERT_FALSE(config.ok()) << flag.argument;
    EXPECT_NE(std::string(config.status().message()).find(flag.told), std::string::npos)
        << flag.argument << ": " << config.status();
  }
}

TEST(ParseFlags, CallersAreNamedByCertificatesOrByTokens) {
  EXPECT_EQ(ParseFlags({"--token_file=d"})->token_file, "d");
  const auto both = ParseFlags({"--token_file=d", "--callers=a"});
  ASSERT_FALSE(both.ok());
  EXPECT_NE(both.status().message().find("--callers"), std::string::npos) << both.status();
  EXPECT_NE(both.status().message().find("--token_file"), std::string::npos) << both.status();
}

TEST(ParseFlags, PortsDifferUnlessTheyAreFreeOnes) {
  EXPECT_FALSE(ParseFlags({"--port=8002"}).ok());  // the default of --metrics_port
  EXPECT_FALSE(ParseFlags({"--health_port=8001"}).ok());
  EXPECT_FALSE(ParseFlags({"--metrics_port=9", "--health_port=9"}).ok());
  EXPECT_TRUE(ParseFlags({"--port=0", "--metrics_port=0", "--health_port=0"}).ok());
}

TEST(ParseFlags, AFlagGivenTwiceIsAnError) {
  EXPECT_FALSE(ParseFlags({"--port=1", "--port=1"}).ok());
}

TEST(ParseFlags, HelpNamesEveryFlag) {
  const std::string help = FlagsHelp();
  for (const char* name : {"--port",
                           "--metrics_port",
                           "--address",
                           "--device",
                           "--threads",
                           "--workers",
                           "--queue_capacity",
                           "--memory_limit_bytes",
                           "--min_read_bytes_per_second",
                           "--callers",
                           "--drain_timeout",
                           "--near_band_ulps",
                           "--max_message_bytes",
                           "--max_request_bytes",
                           "--max_steps",
                           "--max_instances",
                           "--program_cache_entries",
                           "--tls_certificate",
                           "--tls_key",
                           "--tls_client_ca",
                           "--tls_reload_interval",
                           "--token_file",
                           "--allow_insecure",
                           "--allow_insecure_metrics",
                           "--health_port",
                           "--reflection",
                           "--channelz",
                           "--max_metadata_bytes",
                           "--max_concurrent_streams",
                           "--max_connection_age",
                           "--kernel_cache",
                           "--warm",
                           "--fatal_exit_after",
                           "--self_check_interval",
                           "--log_level",
                           "--log_lines_per_second",
                           "--otlp_endpoint",
                           "--otlp_ca"}) {
    EXPECT_NE(help.find(std::string(name) + "="), std::string::npos) << name;
  }
}

TEST(ParseFlags, HelpNamesEveryActionAndExitCode) {
  const std::string help = FlagsHelp();
  for (const char* told : {"  --version ", "  --validate_config ", "  --healthcheck "}) {
    EXPECT_NE(help.find(told), std::string::npos) << told;
  }
  const std::string codes = help.substr(help.find("Exit codes:"));
  for (int code = 0; code <= 5; ++code) {
    EXPECT_NE(codes.find(" " + std::to_string(code) + " "), std::string::npos) << code;
  }
}

TEST(FlagsInCommandLine, AreThoseOfTheServerBehindItsInit) {
  using namespace std::string_literals;
  const std::vector<std::string> flags = {"--port=1", "--health_port=2"};
  EXPECT_EQ(FlagsInCommandLine("simgrad-server\0--port=1\0--health_port=2\0"s), flags);
  EXPECT_EQ(FlagsInCommandLine("/sbin/docker-init\0--\0/usr/local/bin/simgrad-server\0--port=1\0"
                               "--health_port=2\0"s),
            flags);
  EXPECT_TRUE(FlagsInCommandLine("/sbin/init\0--port=1\0"s).empty());
  EXPECT_TRUE(FlagsInCommandLine("/opt/not-simgrad-server\0--port=1\0"s).empty());
  EXPECT_TRUE(FlagsInCommandLine("").empty());
}

}  // namespace
}  // namespace simgrad::server::config
