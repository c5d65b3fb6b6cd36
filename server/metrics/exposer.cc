#include "server/metrics/exposer.h"

#include <civetweb.h>

#include <atomic>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"

namespace simgrad::server::metrics {

std::string Exposer::Page() const {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& collectable : collectables_) {
    for (prometheus::MetricFamily& family : collectable->Collect()) {
      families.push_back(std::move(family));
    }
  }
  std::ostringstream page;
  prometheus::TextSerializer().Serialize(page, families);
  return page.str();
}

int Exposer::Handle(mg_connection* connection, void* self) {
  const std::string page = static_cast<Exposer*>(self)->Page();
  mg_printf(connection,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: %zu\r\nConnection: close\r\n\r\n",
            page.size());
  mg_write(connection, page.data(), page.size());
  return 200;
}

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Create(
    const std::string& address, int port,
    std::vector<std::shared_ptr<prometheus::Collectable>> collectables) {
  std::unique_ptr<Exposer> exposer(new Exposer());
  exposer->collectables_ = std::move(collectables);
  exposer->host_ = address == "0.0.0.0" ? "127.0.0.1" : address == "::" ? "::1" : address;
  const bool v6 = address.find(':') != std::string::npos;
  if (v6 && mg_check_feature(MG_FEATURES_IPV6) == 0) {  // Debian's and Ubuntu's have it not
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address,
                                               ": the CivetWeb of this build knows no IPv6; give "
                                               "an --address of IPv4"));
  }
  const std::string listen =
      v6 ? absl::StrCat("[", address, "]:", port) : absl::StrCat(address, ":", port);
  const char* options[] = {"listening_ports", listen.c_str(), "num_threads", "2", nullptr};
  mg_callbacks callbacks{};
  exposer->context_ = mg_start(&callbacks, exposer.get(), options);
  if (exposer->context_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", listen,
                                               "; is the port taken? --metrics_port=0 picks one"));
  }
  mg_server_port bound{};
  if (mg_get_server_ports(exposer->context_, 1, &bound) == 1) exposer->port_ = bound.port;
  mg_set_request_handler(exposer->context_, "/metrics$", &Exposer::Handle, exposer.get());
  return exposer;
}

// The library's accepting thread looks at its stop flag only every two seconds, or when a
// connection comes: so connections are made until it has stopped.
Exposer::~Exposer() {
  if (context_ == nullptr) return;
  std::atomic<bool> stopped = false;
  std::thread waker([&] {
    while (!stopped) {
      char error[64] = "";
      mg_connection* connection = mg_connect_client(host_.c_str(), port_, 0, error, sizeof(error));
      if (connection != nullptr) mg_close_connection(connection);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  mg_stop(context_);
  stopped = true;
  waker.join();
}

}  // namespace simgrad::server::metrics
