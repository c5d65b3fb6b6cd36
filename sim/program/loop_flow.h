// The ways in which values flow through a loop: from operands into its regions, around, and out.
//
// `flow(from, to)` is called for each; `read(region)` for each region in its turn, so that a graph is
// made in text order. Cost: linear in operands, arguments, yields and results.
#pragma once

#include <cstddef>

#include "sim/program/loop.h"
#include "sim/program/program.h"

namespace simgrad::sim {

template <class Flow, class Read>
void FlowOfWhile(const Op& op, const Flow& flow, const Read& read) {
  const WhileCounts counts = CountsOf(op);
  const auto c = static_cast<size_t>(counts.carried);
  const auto e = static_cast<size_t>(counts.exports);
  const size_t tests = FirstExport(op);
  const Region& test = op.regions[0];
  const Region& body = op.regions[1];
  for (size_t i = 0; i < op.operands.size(); ++i) {
    flow(op.operands[i], test.args[i]);
    flow(op.operands[i], body.args[i < c ? i : i + e]);
  }
  read(test);
  for (size_t i = 0; i < e; ++i) {
    flow(test.yields[tests + i], body.args[c + i]);
    flow(test.yields[tests + i], op.results[c + i]);
  }
  read(body);
  for (size_t i = 0; i < c; ++i) {
    flow(body.yields[i], test.args[i]);
    flow(body.yields[i], body.args[i]);
    flow(test.args[i], op.results[i]);
  }
}

template <class Flow, class Read>
void FlowOfFor(const Op& op, const Flow& flow, const Read& read) {
  const Region& body = op.regions[0];
  for (size_t i = 0; i < op.operands.size(); ++i) flow(op.operands[i], body.args[i + 1]);
  read(body);
  const auto carried = static_cast<size_t>(op.attributes.carried);
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (i < carried) {
      flow(body.yields[i], body.args[i + 1]);
      flow(body.args[i + 1], op.results[i]);
    } else {
      flow(body.yields[i], op.results[i]);
    }
  }
}

}  // namespace simgrad::sim
