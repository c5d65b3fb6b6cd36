#include "server/conversion/program_info.h"

#include "server/conversion/policy.h"

namespace simgrad::server::conversion {

v1::ProgramInfo ProgramInfoToProto(const sim::NumericalProgram& program) {
  v1::ProgramInfo info;
  info.set_fingerprint(program.fingerprint);
  *info.mutable_policy() = PolicyToProto(program.policy);
  for (const sim::Site& site : program.sites) {
    if (site.kind == sim::SiteKind::kTermination) {
      info.add_termination_sites(site.name);
    } else {
      info.add_event_sites(site.name);
    }
  }
  return info;
}

std::string WithText(const std::string& info, const std::string& text) {
  v1::ProgramInfo with_text;
  with_text.set_text(text);
  std::string bytes = info;
  with_text.AppendToString(&bytes);  // messages that follow each other are merged
  return bytes;
}

}  // namespace simgrad::server::conversion
