// simgrad-operations: prints the table of docs/programs.md; --python the methods of the Python
// builder.
#include <iostream>
#include <string_view>

#include "server/conversion/operation_pages.h"

int main(int argc, char** argv) {
  const bool python = argc > 1 && std::string_view(argv[1]) == "--python";
  std::cout << (python ? simgrad::server::conversion::OperationsPython()
                       : simgrad::server::conversion::OperationsMarkdown());
  return 0;
}
