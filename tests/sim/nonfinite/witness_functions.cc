// The vjp rules of the witness, one entry each: docs/numerics.md section 6.
#include <map>

#include "tests/sim/nonfinite/witness.h"

namespace simgrad::nonfinite {

class Witness::Rules {
 public:
  Rules(Witness& witness, Node& node, const Slot& slot, const Context& context)
      : w_(witness), node_(node), slot_(slot), context_(context), g_{slot.v, slot.format, false} {}

  // By name of the operation. Of several operands the later one comes first.
  using Rule = void (*)(Rules&);
  static const std::map<std::string, Rule>& All();

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
  void To(size_t k, const Read& read) {
    w_.Contribute(node_.in[k], {read.v, slot_.mask, slot_.partial, read.format}, context_);
  }
  void Product() {
    if (Wants(1)) To(1, Op("mul", {g_, X(0)}));
    if (Wants(0)) To(0, Op("mul", {g_, X(1)}));
  }
  void Power() {
    if (Wants(1)) To(1, Op("mul", {Op("mul", {g_, Y()}), Op("log", {X(0)})}));
    if (!Wants(0)) return;
    const Read scaled = Op("mul", {g_, X(1)});
    const Read less = Op("sub", {X(1), Number(1.0)});
    To(0, Op("mul", {scaled, Op("pow", {X(0), less})}));
  }
  void Angle() {
    const Read d = Op("add", {Op("mul", {X(1), X(1)}), Op("mul", {X(0), X(0)})});
    if (Wants(1)) To(1, Op("neg", {Op("div", {Op("mul", {g_, X(0)}), d})}));
    if (Wants(0)) To(0, Op("div", {Op("mul", {g_, X(1)}), d}));
  }

  void Arc(bool negative) {
    const Read below = Op("sub", {Number(1.0), X(0)});
    const Read above = Op("add", {Number(1.0), X(0)});
    const Read slope = Op("div", {g_, Op("sqrt", {Op("mul", {below, above})})});
    To(0, negative ? Op("neg", {slope}) : slope);
  }
  void ErrorFunction(bool negative) {
    const Read decay = Op("exp", {Op("neg", {Op("mul", {X(0), X(0)})})});
    const Read slope = Op("mul", {g_, Op("mul", {Number(0x1.20dd750429b6dp+0), decay})});
    To(0, negative ? Op("neg", {slope}) : slope);
  }

  Witness& w_;
  Node& node_;
  const Slot& slot_;
  const Context& context_;
  Read g_;
};

const std::map<std::string, Witness::Rules::Rule>& Witness::Rules::All() {
  static const auto* const kAll = new std::map<std::string, Rule>{
      {"neg", [](Rules& r) { r.To(0, r.Op("neg", {r.g_})); }},
      {"abs",
       [](Rules& r) {
         r.To(0, r.Op("mul", {r.g_, r.Sign()}));
       }},
      {"sqrt",
       [](Rules& r) {
         r.To(0, r.Op("div", {r.Op("mul", {r.Number(0.5), r.g_}), r.Y()}));
       }},
      {"exp",
       [](Rules& r) {
         r.To(0, r.Op("mul", {r.g_, r.Y()}));
       }},
      {"expm1",
       [](Rules& r) {
         r.To(0, r.Op("mul", {r.g_, r.Op("add", {r.Y(), r.Number(1.0)})}));
       }},
      {"log",
       [](Rules& r) {
         r.To(0, r.Op("div", {r.g_, r.X(0)}));
       }},
      {"log1p",
       [](Rules& r) {
         r.To(0, r.Op("div", {r.g_, r.Op("add", {r.Number(1.0), r.X(0)})}));
       }},
      {"sin",
       [](Rules& r) {
         r.To(0, r.Op("mul", {r.g_, r.Op("cos", {r.X(0)})}));
       }},
      {"cos",
       [](Rules& r) {
         r.To(0, r.Op("neg", {r.Op("mul", {r.g_, r.Op("sin", {r.X(0)})})}));
       }},
      {"exp2",
       [](Rules& r) {
         r.To(0, r.Op("mul", {r.Op("mul", {r.g_, r.Y()}), r.Number(0x1.62e42fefa39efp-1)}));
       }},
      {"log2",
       [](Rules& r) {
         r.To(0, r.Op("div", {r.g_, r.Op("mul", {r.X(0), r.Number(0x1.62e42fefa39efp-1)})}));
       }},
      {"rsqrt",
       [](Rules& r) {
         const Read half = r.Op("mul", {r.Op("mul", {r.Number(0.5), r.g_}), r.Y()});
         r.To(0, r.Op("neg", {r.Op("div", {half, r.X(0)})}));
       }},
      {"cbrt",
       [](Rules& r) {
         const Read square = r.Op("mul", {r.Y(), r.Y()});
         r.To(0, r.Op("div", {r.g_, r.Op("mul", {r.Number(3.0), square})}));
       }},
      {"tan",
       [](Rules& r) {
         const Read square = r.Op("mul", {r.Y(), r.Y()});
         r.To(0, r.Op("mul", {r.g_, r.Op("add", {r.Number(1.0), square})}));
       }},
      {"asin", [](Rules& r) { r.Arc(false); }},
      {"acos", [](Rules& r) { r.Arc(true); }},
      {"atan",
       [](Rules& r) {
         const Read square = r.Op("mul", {r.X(0), r.X(0)});
         r.To(0, r.Op("div", {r.g_, r.Op("add", {r.Number(1.0), square})}));
       }},
      {"sinh",
       [](Rules& r) {
         r.To(0, r.Op("mul", {r.g_, r.Op("cosh", {r.X(0)})}));
       }},
      {"cosh",
       [](Rules& r) {
         r.To(0, r.Op("mul", {r.g_, r.Op("sinh", {r.X(0)})}));
       }},
      {"erf", [](Rules& r) { r.ErrorFunction(false); }},
      {"erfc", [](Rules& r) { r.ErrorFunction(true); }},
      {"next_after",
       [](Rules& r) {
         if (r.Wants(0)) r.To(0, r.g_);
       }},
      {"rem",
       [](Rules& r) {
         if (r.Wants(1)) {
           const Read whole = r.Op("trunc", {r.Op("div", {r.X(0), r.X(1)})});
           r.To(1, r.Op("neg", {r.Op("mul", {r.g_, whole})}));
         }
         if (r.Wants(0)) r.To(0, r.g_);
       }},
      {"tanh",
       [](Rules& r) {
         const Read square = r.Op("mul", {r.Y(), r.Y()});
         r.To(0, r.Op("mul", {r.g_, r.Op("sub", {r.Number(1.0), square})}));
       }},
      {"sigmoid",
       [](Rules& r) {
         const Read scaled = r.Op("mul", {r.g_, r.Y()});
         r.To(0, r.Op("mul", {scaled, r.Op("sub", {r.Number(1.0), r.Y()})}));
       }},
      {"softplus",
       [](Rules& r) {
         r.To(0, r.Op("mul", {r.g_, r.Op("sigmoid", {r.X(0)})}));
       }},
      {"add",
       [](Rules& r) {
         if (r.Wants(1)) r.To(1, r.g_);
         if (r.Wants(0)) r.To(0, r.g_);
       }},
      {"sub",
       [](Rules& r) {
         if (r.Wants(1)) r.To(1, r.Op("neg", {r.g_}));
         if (r.Wants(0)) r.To(0, r.g_);
       }},
      {"mul", [](Rules& r) { r.Product(); }},
      {"fma",
       [](Rules& r) {
         if (r.Wants(2)) r.To(2, r.g_);
         r.Product();
       }},
      {"div",
       [](Rules& r) {
         const Read t = r.Op("div", {r.g_, r.X(1)});
         if (r.Wants(1)) r.To(1, r.Op("neg", {r.Op("mul", {t, r.Y()})}));
         if (r.Wants(0)) r.To(0, t);
       }},
      {"mod",
       [](Rules& r) {
         if (r.Wants(1)) {
           const Read whole = r.Op("floor", {r.Op("div", {r.X(0), r.X(1)})});
           r.To(1, r.Op("neg", {r.Op("mul", {r.g_, whole})}));
         }
         if (r.Wants(0)) r.To(0, r.g_);
       }},
      {"pow", [](Rules& r) { r.Power(); }},
      {"atan2", [](Rules& r) { r.Angle(); }},
  };
  return *kAll;
}

bool Witness::HasRule(const std::string& what) { return Rules::All().count(what) != 0; }

bool Witness::ReverseFunction(Node& node, const Slot& slot, const Context& context) {
  const auto rule = Rules::All().find(node.what);
  if (rule == Rules::All().end()) return false;
  Rules rules(*this, node, slot, context);
  rule->second(rules);
  return true;
}

}  // namespace simgrad::nonfinite
