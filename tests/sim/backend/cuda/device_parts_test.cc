// Parts of the device's headers alone: margins against precision/ulp.h, joins over the threads of
// warps.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "precision/lane.h"
#include "precision/ulp.h"
#include "sim/backend/cuda/device/buckets.h"
#include "sim/backend/cuda/device/margin.h"
#include "sim/diagnostics/diagnostics.h"
#include "tests/sim/backend/cuda/host_shim/host_shim_device.h"

namespace simgrad::tests {
namespace {

using precision::Format;

double NumberOf(std::mt19937_64& random) {
  const double few[] = {0.0,
                        -0.0,
                        1.0,
                        std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity(),
                        std::numeric_limits<double>::quiet_NaN(),
                        std::numeric_limits<float>::denorm_min(),
                        std::numeric_limits<float>::max(),
                        std::numeric_limits<double>::denorm_min(),
                        std::numeric_limits<double>::max()};
  if (random() % 4 == 0) return few[random() % std::size(few)];
  return std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random),
                    static_cast<int>(random() % 320) - 160);
}

template <Format F, class Extra>
void ExpectMarginsOf(uint64_t seed) {
  using Lane = precision::Lane<F>;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200000; ++i) {
    const auto a = Lane::Round(NumberOf(random));
    // Mostly near each other, as tested values are to their thresholds.
    const auto b = random() % 2 == 0 ? Lane::Round(NumberOf(random))
                                     : Lane::Round(static_cast<double>(a) * (1.0 + 1e-6));
    const auto extra = static_cast<Extra>(NumberOf(random));
    const auto made = sim::cuda::device::DistanceOf<F>(a, b, extra);
    const auto asked = precision::MarginOf(F, a, b, static_cast<double>(extra));
    ASSERT_EQ(made.number, !std::isnan(asked.ulps)) << a << " " << b << " " << extra;
    if (!made.number) continue;
    const double sign = made.negative ? -1.0 : 1.0;
    ASSERT_EQ(precision::BitsOf(sign * made.absolute), precision::BitsOf(asked.absolute))
        << a << " " << b << " " << extra;
    ASSERT_EQ(precision::BitsOf(sign * made.ulps), precision::BitsOf(asked.ulps))
        << a << " " << b << " " << extra;
  }
}

TEST(DevicePartsTest, MarginsAreThoseOfTheDefinition) {
  ExpectMarginsOf<Format::kF64, double>(1);
  ExpectMarginsOf<Format::kF32, float>(2);
  ExpectMarginsOf<Format::kF32, double>(3);
  ExpectMarginsOf<Format::kBf16, float>(4);
  ExpectMarginsOf<Format::kF16, float>(5);
  ExpectMarginsOf<Format::kE4m3, float>(6);
  ExpectMarginsOf<Format::kE5m2, double>(7);
}

TEST(DevicePartsTest, BucketsAreThoseOfTheHost) {
  const auto expect = [](uint32_t iterations) {
    EXPECT_EQ(sim::cuda::device::IterationBucket(iterations),
              static_cast<int>(sim::IterationBucket(iterations)))
        << iterations;
  };
  for (uint32_t iterations = 0; iterations < 2000; ++iterations) expect(iterations);
  for (int bit = 11; bit < 32; ++bit) {
    for (uint32_t near = 0; near < 3; ++near) expect((uint32_t{1} << bit) + near - 1);
  }
  expect(std::numeric_limits<uint32_t>::max());
  for (int exponent = -80; exponent < 80; ++exponent) {
    for (double x : {1.0, std::nextafter(1.0, 2.0), 1.5, std::nextafter(2.0, 1.0)}) {
      const double ulps = std::ldexp(x, exponent);
      EXPECT_EQ(sim::cuda::device::MarginBucket(ulps), static_cast<int>(sim::MarginBucket(ulps)))
          << ulps;
    }
  }
  using sim::cuda::device::ExponentBucket;
  for (int exponent = -149; exponent < 128; ++exponent) {
    for (float x : {1.0f, 1.5f, std::nextafter(2.0f, 1.0f)}) {
      const float magnitude = std::ldexp(x, exponent);
      EXPECT_EQ(ExponentBucket(magnitude), sim::ExponentBucket(magnitude)) << magnitude;
      EXPECT_EQ(ExponentBucket(static_cast<double>(magnitude)), sim::ExponentBucket(magnitude));
    }
  }
  EXPECT_EQ(ExponentBucket(0.0f), 0);
}

// Each warp tells every thread of it: sum, least and most of one number each, union of a bit.
constexpr char kWarps[] = R"(
#include "sim/backend/cuda/kernel_abi.h"
#include "sim/backend/cuda/device/warp.h"
using namespace simgrad::sim::cuda;
using namespace simgrad::sim::cuda::device;
extern "C" __global__ void simgrad_start(const __grid_constant__ KernelArgs args) {
  const unsigned long long x = static_cast<unsigned long long>(args.integer[threadIdx.x]);
  unsigned long long* const out = static_cast<unsigned long long*>(args.field[0]) + 5 * threadIdx.x;
  const bool large = WarpUnion(x >= kLargeCount ? 1u : 0u) != 0;
  out[0] = WarpSum(x, large);
  out[1] = WarpLeast(x);
  out[2] = WarpMost(x);
  out[3] = WarpUnion(1u << (threadIdx.x & 31));
  out[4] = IsFirstOfWarp();
}
)";

// What one block with a thread per number writes: `words` numbers for each, 0 where it writes none.
std::vector<uint64_t> OfBlock(const std::string& text, const std::vector<uint64_t>& numbers,
                              size_t words, absl::Status& status, sim::cuda::KernelArgs args = {}) {
  const auto device = MakeHostShimDevice({.seed = numbers.size()});
  sim::cuda::GeneratedSource source;
  source.text = text;
  const auto module = device->Load(source, sim::cuda::KernelChoice::kBest);
  status = module.status();
  if (!status.ok()) return {};
  auto stream = *device->OpenStream();
  const int64_t threads = static_cast<int64_t>(numbers.size());
  const auto in = *device->Allocate(threads * 8);
  const auto out = *device->Allocate(threads * static_cast<int64_t>(8 * words));
  status.Update(stream->ToDevice(in.data(), numbers.data(), in.bytes()));
  status.Update(stream->Fill(out.data(), 0, out.bytes()));
  args.integer = static_cast<const int64_t*>(in.data());
  args.field[0] = out.data();
  status.Update(stream->Launch(**module, "simgrad_start", {1, static_cast<int>(threads), 0}, args));
  std::vector<uint64_t> told(numbers.size() * words);
  status.Update(stream->ToHost(told.data(), out.data(), out.bytes()));
  return told;
}

TEST(DevicePartsTest, WarpsAddAndCompareWholeAndBroken) {
  std::mt19937_64 random(1);
  for (size_t threads : {1u, 2u, 31u, 32u, 33u, 96u, 100u}) {
    for (int bits : {4, 26, 40, 53}) {
      std::vector<uint64_t> numbers(threads);
      for (uint64_t& x : numbers) x = random() % (uint64_t{1} << bits);
      absl::Status status;
      const std::vector<uint64_t> told = OfBlock(kWarps, numbers, 5, status);
      ASSERT_TRUE(status.ok()) << status;
      for (size_t i = 0; i < threads; ++i) {
        const size_t first = i / 32 * 32;
        const size_t last = std::min(threads, first + 32);
        const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(first);
        const auto end = numbers.begin() + static_cast<std::ptrdiff_t>(last);
        uint64_t sum = 0;
        for (auto x = begin; x != end; ++x) sum += *x;
        const uint64_t lanes = last - first;
        EXPECT_EQ(told[5 * i], sum) << threads << " threads, " << bits << " bits";
        EXPECT_EQ(told[5 * i + 1], *std::min_element(begin, end));
        EXPECT_EQ(told[5 * i + 2], *std::max_element(begin, end));
        EXPECT_EQ(told[5 * i + 3], (uint64_t{1} << lanes) - 1);
        EXPECT_EQ(told[5 * i + 4], i == first ? 1u : 0u);
      }
    }
  }
}

// All threads add to one count.
constexpr char kAdds[] = R"(
#include "sim/backend/cuda/device/join.h"
using namespace simgrad::sim::cuda;
using namespace simgrad::sim::cuda::device;
extern "C" __global__ void simgrad_start(const __grid_constant__ KernelArgs args) {
  AddTo(*static_cast<unsigned long long*>(args.field[0]),
        static_cast<unsigned long long>(args.integer[threadIdx.x]));
}
)";

TEST(DevicePartsTest, ACountIsCarriedFromItsLowerHalfToItsUpper) {
  std::mt19937_64 random(2);
  for (int bits : {4, 31, 32, 33, 50}) {
    std::vector<uint64_t> numbers(96);
    for (uint64_t& x : numbers) x = (uint64_t{1} << bits) - 1 - random() % 3;
    absl::Status status;
    const std::vector<uint64_t> told = OfBlock(kAdds, numbers, 1, status);
    ASSERT_TRUE(status.ok()) << status;
    uint64_t sum = 0;
    for (uint64_t x : numbers) sum += x;
    EXPECT_EQ(told[0], sum) << bits << " bits";
  }
}

// Each thread goes through the window of steps that begins with its number and tells, bit by bit,
// which are sampled, and how many before.
constexpr char kSamples[] = R"(
#include "sim/backend/cuda/device/kernels.h"
using namespace simgrad::sim::cuda;
using namespace simgrad::sim::cuda::device;
extern "C" __global__ void simgrad_start(const __grid_constant__ KernelArgs args) {
  unsigned long long* const out = static_cast<unsigned long long*>(args.field[0]) + 2 * threadIdx.x;
  const int64_t begin = args.integer[threadIdx.x];
  Samples samples(args);
  samples.Begin(begin);
  out[1] = static_cast<unsigned long long>(samples.Before(args.first_step, begin));
  for (int64_t t = begin; t < begin + 60; ++t) {
    out[0] |= samples.Has(t) ? 1ull << (t - begin) : 0;
    samples.Next();
  }
}
)";

TEST(DevicePartsTest, SampledStepsAreThoseOfTheStrideAndTheLast) {
  for (int32_t stride : {0, 1, 7, 32, 100}) {
    sim::cuda::KernelArgs args = {};
    args.stride = stride;
    args.steps = 170;
    args.first_step = 5;
    const std::vector<uint64_t> begins = {5, 6, 31, 32, 63, 99, 110};
    absl::Status status;
    const std::vector<uint64_t> told = OfBlock(kSamples, begins, 2, status, args);
    ASSERT_TRUE(status.ok()) << status;
    const auto sampled = [&](uint64_t t) {
      const bool in_stride = stride > 0 && (t + 1) % static_cast<uint64_t>(stride) == 0;
      return in_stride || t + 1 == 170;
    };
    for (size_t i = 0; i < begins.size(); ++i) {
      uint64_t before = 0;
      for (uint64_t t = 5; t < begins[i]; ++t) before += sampled(t) ? 1 : 0;
      EXPECT_EQ(told[2 * i + 1], before) << stride << ", " << begins[i];
      for (uint64_t t = begins[i]; t < begins[i] + 60; ++t) {
        EXPECT_EQ((told[2 * i] >> (t - begins[i])) & 1, sampled(t) ? 1u : 0u)
            << stride << ", " << t;
      }
    }
  }
}

TEST(DevicePartsTest, AThreadThatIsMissingInItsWarpIsAnError) {
  const auto device = MakeHostShimDevice({.seed = 1});
  sim::cuda::GeneratedSource source;
  source.text = kWarps;
  const std::string join = "const bool large";
  source.text.replace(source.text.find(join), join.size(),
                      "if (threadIdx.x == 7) return;\n" + join);
  const auto module = device->Load(source, sim::cuda::KernelChoice::kBest);
  ASSERT_TRUE(module.ok()) << module.status();
  auto stream = *device->OpenStream();
  const auto in = *device->Allocate(64 * 8);
  const auto out = *device->Allocate(64 * 40);
  const std::vector<uint64_t> numbers(64);
  ASSERT_TRUE(stream->ToDevice(in.data(), numbers.data(), in.bytes()).ok());
  sim::cuda::KernelArgs args = {};
  args.integer = static_cast<const int64_t*>(in.data());
  args.field[0] = out.data();
  absl::Status status = stream->Launch(**module, "simgrad_start", {1, 64, 0}, args);
  status.Update(stream->Wait());
  EXPECT_NE(std::string(status.message()).find("thread 7 has ended"), std::string::npos) << status;
}

}  // namespace
}  // namespace simgrad::tests
