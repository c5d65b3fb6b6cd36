#include "server/metrics/scrape_request.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace simgrad::server::metrics {
namespace {

std::string WithText(const std::string& status, const std::string& headers,
                     const std::string& text) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: text/plain; charset=utf-8\r\n",
                      headers, "Content-Length: ", text.size(), "\r\nConnection: close\r\n\r\n",
                      text);
}

}  // namespace

Asked WhatIsAsked(std::string_view received) {
  const size_t end = received.find("\r\n\r\n");
  if (end == std::string_view::npos) {
    return received.size() > kMaxRequestHead ? Asked::kTooLong : Asked::kMore;
  }
  if (end > kMaxRequestHead) return Asked::kTooLong;
  const std::vector<std::string> words =
      absl::StrSplit(std::string(received.substr(0, received.find("\r\n"))), ' ');
  if (words.size() != 3 || words[0].empty() || words[1].empty() ||
      !absl::StartsWith(words[2], "HTTP/1.")) {
    return Asked::kMalformed;
  }
  const bool get = words[0] == "GET";
  if (!get && words[0] != "HEAD") return Asked::kOtherMethod;
  if (words[1].substr(0, words[1].find('?')) != "/metrics") return Asked::kOtherPath;
  return get ? Asked::kPage : Asked::kPageHead;
}

std::string AnswerHead(Asked asked, size_t page_bytes) {
  switch (asked) {
    case Asked::kPage:
    case Asked::kPageHead:
      return absl::StrCat(
          "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
          "Content-Length: ",
          page_bytes, "\r\nConnection: close\r\n\r\n");
    case Asked::kOtherPath:
      return WithText("404 Not Found", "", "this port has /metrics alone\n");
    case Asked::kOtherMethod:
      return WithText("405 Method Not Allowed", "Allow: GET, HEAD\r\n",
                      "/metrics is read with GET or HEAD\n");
    case Asked::kTooLong:
      return WithText(
          "431 Request Header Fields Too Large", "",
          absl::StrCat("the head of a request has at most ", kMaxRequestHead, " bytes\n"));
    case Asked::kMore:
    case Asked::kMalformed:
      break;
  }
  return WithText("400 Bad Request", "", "a request begins: GET /metrics HTTP/1.1\n");
}

}  // namespace simgrad::server::metrics
