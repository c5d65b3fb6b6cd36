// Prints pages from the table of operations: a table of docs/programs.md, and the methods of the
// Python builder. A test holds both to the table.
#pragma once

#include <string>

namespace simgrad::server::conversion {

std::string OperationsMarkdown();
std::string OperationsPython();

}  // namespace simgrad::server::conversion
