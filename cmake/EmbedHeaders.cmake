# Run by cmake -P: writes a C++ source that holds texts of headers.
#
# -DOUT=FILE -DROOT=FOLDER -DHEADERS=a;b;... (paths below ROOT, by which they are included).
set(rows "")
foreach(header IN LISTS HEADERS)
  file(READ "${ROOT}/${header}" text)
  # In pieces, because a string literal may be limited to 65536 characters.
  string(LENGTH "${text}" length)
  set(pieces "")
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 16000 piece)
    string(APPEND pieces "R\"SIMGRAD(${piece})SIMGRAD\"\n")
    math(EXPR at "${at} + 16000")
  endwhile()
  string(APPEND rows "      {\"${header}\", ${pieces}},\n")
endforeach()
file(WRITE "${OUT}.new" "// Generated from the headers that kernels include.
#include \"sim/backend/cuda/generate.h\"

namespace simgrad::sim::cuda {

const std::vector<EmbeddedHeader>& EmbeddedHeaders() {
  static const auto* const headers = new std::vector<EmbeddedHeader>{
${rows}  };
  return *headers;
}

}  // namespace simgrad::sim::cuda
")
file(COPY_FILE "${OUT}.new" "${OUT}" ONLY_IF_DIFFERENT)
