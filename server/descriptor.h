// An open descriptor of the operating system, closed by its only owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace simgrad::server {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }

  int number() const { return number_; }  // -1: none
  explicit operator bool() const { return number_ >= 0; }
  void Close() { Descriptor(std::move(*this)); }
  // The caller owns it from now on.
  int Release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

}  // namespace simgrad::server
