// simgrad-metrics-doc: prints docs/metrics.md.
#include <iostream>

#include "server/metrics/manifest.h"

int main() {
  std::cout << simgrad::server::metrics::ManifestMarkdown();
  return 0;
}
