// The vjp rules of the witness, one line each: docs/numerics.md section 6.
#include "tests/sim/nonfinite/witness.h"

namespace simgrad::nonfinite {

class Witness::Rules {
 public:
  Rules(Witness& witness, Node& node, const Slot& slot, const Context& context)
      : w_(witness), node_(node), slot_(slot), context_(context), g_{slot.v, slot.format, false} {}

  bool OfOne() {
    const std::string& what = node_.what;
    if (what == "neg") return To(0, Op("neg", {g_}));
    if (what == "abs") return To(0, Op("mul", {g_, Sign()}));
    if (what == "sqrt") return To(0, Op("div", {Op("mul", {Number(0.5), g_}), Y()}));
    if (what == "exp") return To(0, Op("mul", {g_, Y()}));
    if (what == "expm1") return To(0, Op("mul", {g_, Op("add", {Y(), Number(1.0)})}));
    if (what == "log") return To(0, Op("div", {g_, X(0)}));
    if (what == "log1p") return To(0, Op("div", {g_, Op("add", {Number(1.0), X(0)})}));
    if (what == "sin") return To(0, Op("mul", {g_, Op("cos", {X(0)})}));
    if (what == "cos") return To(0, Op("neg", {Op("mul", {g_, Op("sin", {X(0)})})}));
    if (what == "tanh") {
      const Read square = Op("mul", {Y(), Y()});
      return To(0, Op("mul", {g_, Op("sub", {Number(1.0), square})}));
    }
    if (what != "sigmoid") return false;
    const Read scaled = Op("mul", {g_, Y()});
    return To(0, Op("mul", {scaled, Op("sub", {Number(1.0), Y()})}));
  }

  // The later operand first.
  bool OfSeveral() {
    const std::string& what = node_.what;
    if (what == "add" || what == "sub") {
      if (Wants(1)) To(1, what == "sub" ? Op("neg", {g_}) : g_);
      if (Wants(0)) To(0, g_);
    } else if (what == "mul" || what == "fma") {
      if (what == "fma" && Wants(2)) To(2, g_);
      if (Wants(1)) To(1, Op("mul", {g_, X(0)}));
      if (Wants(0)) To(0, Op("mul", {g_, X(1)}));
    } else if (what == "div") {
      const Read t = Op("div", {g_, X(1)});
      if (Wants(1)) To(1, Op("neg", {Op("mul", {t, Y()})}));
      if (Wants(0)) To(0, t);
    } else if (what == "pow") {
      if (Wants(1)) To(1, Op("mul", {Op("mul", {g_, Y()}), Op("log", {X(0)})}));
      if (Wants(0)) {
        const Read scaled = Op("mul", {g_, X(1)});
        const Read less = Op("sub", {X(1), Number(1.0)});
        To(0, Op("mul", {scaled, Op("pow", {X(0), less})}));
      }
    } else if (what == "atan2") {
      const Read d = Op("add", {Op("mul", {X(1), X(1)}), Op("mul", {X(0), X(0)})});
      if (Wants(1)) To(1, Op("neg", {Op("div", {Op("mul", {g_, X(0)}), d})}));
      if (Wants(0)) To(0, Op("div", {Op("mul", {g_, X(1)}), d}));
    } else {
      return false;
    }
    return true;
  }

 private:
  Read X(size_t k) { return w_.Tape(*node_.in[k], context_); }
  Read Y() { return w_.Tape(node_, context_); }
  Read Op(const char* name, const std::vector<Read>& in) { return w_.Do(name, in, context_); }
  Read Number(double value) const {
    return {std::vector<double>(slot_.v.size(), value), Format::kF64, true};
  }
  Read Sign() const {
    Read sign{{}, w_.Setting(context_.role).format, false};
    for (double v : node_.read[0]) sign.v.push_back((v > 0) - (v < 0));
    return sign;
  }
  bool Wants(size_t k) const { return node_.in[k]->active; }
  bool To(size_t k, const Read& read) {
    w_.Contribute(node_.in[k], {read.v, slot_.mask, slot_.partial, read.format}, context_);
    return true;
  }

  Witness& w_;
  Node& node_;
  const Slot& slot_;
  const Context& context_;
  Read g_;
};

bool Witness::ReverseFunction(Node& node, const Slot& slot, const Context& context) {
  Rules rules(*this, node, slot, context);
  return rules.OfOne() || rules.OfSeveral();
}

}  // namespace simgrad::nonfinite
