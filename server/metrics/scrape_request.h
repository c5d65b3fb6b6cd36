// Reads the head of an HTTP request to the metrics port, and writes the head of the answer.
//
// Source: RFC 9110 and 9112, of which only a request line and the end of the head are read: there
// is one page, and every answer closes its connection.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace simgrad::server::metrics {

enum class Asked {
  kMore,         // the head is not complete yet
  kPage,         // GET /metrics
  kPageHead,     // HEAD /metrics
  kOtherPath,    // 404
  kOtherMethod,  // 405
  kMalformed,    // 400
  kTooLong,      // 431
};

// Longest head that is read.
inline constexpr size_t kMaxRequestHead = size_t{8} << 10;

// `received`: everything that has come so far.
Asked WhatIsAsked(std::string_view received);

// The whole answer but the page itself. `page_bytes`: its length.
std::string AnswerHead(Asked asked, size_t page_bytes);

}  // namespace simgrad::server::metrics
