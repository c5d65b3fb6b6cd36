// Programs made to hurt a server, each of one family, by the throws of dice.
//
// Whatever limits they break: a server refuses those. `family` is set to the family and its sizes,
// for a person. Threads: pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

#include "simgrad/v1/program.pb.h"

namespace simgrad::server {

// The same seed gives the same throws on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t least, int64_t most) { return least + Below(most - least + 1); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  // 1, 2, 4, ...: small ones far more often, 2^most at the end of a long tail.
  int64_t Doubling(int64_t most) { return int64_t{1} << Power(most); }
  int64_t Power(int64_t most) {
    int64_t power = Below(8);
    while (power < most && !OneIn(4)) ++power;
    return std::min(power, most);
  }
  uint64_t Word() { return random_(); }

 private:
  std::mt19937_64 random_;
};

// Loops in loops, in one region: step, initial, stage or terminal.
v1::Program NestedProgram(Dice& dice, std::string& family);
// One list of a program that is as long as it wants.
v1::Program DoubledProgram(Dice& dice, std::string& family);
// Straight-line work, or loops, as much as a deadline must end.
v1::Program WideProgram(Dice& dice, std::string& family);
// A few operations on values as large as they want.
v1::Program ShapedProgram(Dice& dice, std::string& family);
// A call of many arguments and results, mostly with a derivative of its own.
v1::Program CalledProgram(Dice& dice, std::string& family);
// As many decisions as it wants, none of which has a name.
v1::Program DecidingProgram(Dice& dice, std::string& family);

}  // namespace simgrad::server
