#include "server/service/container_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <string>

#include "server/service/device.h"

namespace simgrad::server::service {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoMemoryLimit = std::numeric_limits<int64_t>::max();
constexpr int kNoProcessorLimit = std::numeric_limits<int>::max();

// /proc and /sys of a machine, in a folder of this test.
class ContainerLimits : public testing::Test {
 protected:
  void Machine(const std::map<std::string, std::string>& files) {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) / test->name();
    fs::remove_all(root_);
    for (const auto& [name, text] : files) {
      fs::create_directories((root_ / name).parent_path());
      std::ofstream(root_ / name) << text;
    }
  }
  fs::path root_;
};

TEST_F(ContainerLimits, AMachineWithoutGroupsHasNone) {
  Machine({});
  EXPECT_EQ(ContainerMemoryBytes(root_), kNoMemoryLimit);
  EXPECT_EQ(ContainerProcessors(root_), kNoProcessorLimit);
}

TEST_F(ContainerLimits, ThoseOfAContainerOfVersion2AreAtTheRootItSees) {
  Machine({{"proc/self/cgroup", "0::/\n"},
           {"sys/fs/cgroup/memory.max", "8589934592\n"},
           {"sys/fs/cgroup/cpu.max", "250000 100000\n"}});
  EXPECT_EQ(ContainerMemoryBytes(root_), int64_t{8} << 30);
  EXPECT_EQ(ContainerProcessors(root_), 3);
}

TEST_F(ContainerLimits, TheSmallestUpToTheRootHolds) {
  Machine({{"proc/self/cgroup", "0::/pods/one/server\n"},
           {"sys/fs/cgroup/pods/one/server/memory.max", "max\n"},
           {"sys/fs/cgroup/pods/one/server/cpu.max", "max 100000\n"},
           {"sys/fs/cgroup/pods/one/memory.max", "1000\n"},
           {"sys/fs/cgroup/pods/memory.max", "2000\n"}});
  EXPECT_EQ(ContainerMemoryBytes(root_), 1000);
  EXPECT_EQ(ContainerProcessors(root_), kNoProcessorLimit);
}

TEST_F(ContainerLimits, ThoseOfVersion1AreFoundByControllerThoughThePathIsTheHosts) {
  Machine({{"proc/self/cgroup", "4:memory:/host/x\n1:cpu,cpuacct:/host/x\n0::/\n"},
           {"sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n"},
           {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n"},
           {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}});
  EXPECT_EQ(ContainerMemoryBytes(root_), 4096);
  EXPECT_EQ(ContainerProcessors(root_), 1);
}

TEST_F(ContainerLimits, AVersion1QuotaOfMinusOneIsNone) {
  Machine({{"proc/self/cgroup", "1:cpu:/\n"},
           {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
           {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}});
  EXPECT_EQ(ContainerProcessors(root_), kNoProcessorLimit);
}

TEST_F(ContainerLimits, AGpuServersBudgetLeavesAQuarterOfItsContainer) {
  Machine({{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/memory.max", "8589934592\n"}});
  Device gpu;
  gpu.kind = "cuda";
  gpu.memory_bytes = int64_t{80} << 30;
  gpu.gpus.resize(1);
  EXPECT_EQ(DefaultMemoryBudget(gpu, ContainerMemoryBytes(root_)), int64_t{6} << 30);
  EXPECT_EQ(DefaultMemoryBudget(gpu, kNoMemoryLimit), int64_t{40} << 30);
  Device cpu;
  cpu.kind = "cpu";
  cpu.memory_bytes = ContainerMemoryBytes(root_);
  EXPECT_EQ(DefaultMemoryBudget(cpu, cpu.memory_bytes), int64_t{4} << 30);
}

}  // namespace
}  // namespace simgrad::server::service
