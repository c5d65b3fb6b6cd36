#include "server/metrics/methods.h"

namespace simgrad::server::metrics {
namespace {

using Codes = std::vector<std::string>;

}  // namespace

const std::vector<Method>& Methods() {
  static const Codes kWorkCodes = {"OK",
                                   "Canceled",
                                   "InvalidArgument",
                                   "Unimplemented",
                                   "DeadlineExceeded",
                                   "ResourceExhausted",
                                   "FailedPrecondition",
                                   "Unavailable",
                                   "Unauthenticated",
                                   "Internal"};
  // No work: what may end these is the request itself, a limit, and a caller that leaves or is too slow.
  static const Codes kQuickCodes = {
      "OK",          "Canceled",        "InvalidArgument", "DeadlineExceeded", "ResourceExhausted",
      "Unavailable", "Unauthenticated", "Internal"};
  static const Codes kVjpCodes = [] {
    Codes codes = kWorkCodes;
    codes.insert(codes.end() - 1, "NotFound");
    return codes;
  }();
  static const auto* const methods = new std::vector<Method>{
      {"GetServerInfo", "unary", kQuickCodes},   {"ListWorlds", "unary", kQuickCodes},
      {"DescribeProgram", "unary", kWorkCodes},  {"Rollout", "server_stream", kWorkCodes},
      {"Gradient", "server_stream", kWorkCodes}, {"Vjp", "server_stream", kVjpCodes},
      {"Compare", "server_stream", kWorkCodes},  {"Upload", "client_stream", kQuickCodes},
  };
  return *methods;
}

}  // namespace simgrad::server::metrics
