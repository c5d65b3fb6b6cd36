// while and for, forward: the pseudocode of sim/program/loop.h.
#include <utility>

#include "sim/backend/cuda/region_writer.h"

namespace simgrad::sim::cuda {

std::string RegionWriter::CapOf(const Op& op) {
  std::string& name = caps_[&op];
  if (name.empty()) {
    name = Cat("cap", caps_.size() - 1);
    kernel_.Line(
        Cat("const int32_t ", name, " = static_cast<int32_t>(args.integer[",
            source_.Integer(&op, {op.attributes.max_iter}), "]);",
            op.attributes.site.empty() ? "" : Cat("  // max_iter of ", op.attributes.site)));
  }
  return name;
}

Place RegionWriter::ElementOf(const Place& whole, int64_t n, const std::string& element) const {
  const int64_t per = n == 0 ? 0 : whole.count / n;
  if (whole.kind == PlaceKind::kNone) return {};
  if (whole.kind == PlaceKind::kOne && whole.count != 1) return {whole.kind, whole.text, per};
  if (per == 1) return {PlaceKind::kOne, whole[element], 1};
  return {PlaceKind::kFormula, whole[Cat(element, " * ", per, " + #")], per};
}

void RegionWriter::EachMapped(int64_t n, const std::string& element, bool in_order,
                              const std::function<void()>& inside) {
  if (!source_.block() || in_element_) {
    body_.Open(Cat("for (int ", element, " = 0; ", element, " < ", n, "; ++", element, ")"));
    const bool before = std::exchange(in_element_, true);
    inside();
    in_element_ = before;
    body_.Close();
    return;
  }
  if (UsesTape()) Line("if (speaks) *tape_top = tape.top;");
  Barrier();
  // In order of elements where the order is told (level `instances`), else side by side.
  const std::string ordered = in_order ? "tells" : "false";
  body_.Open(Cat("for (int ", element, " = ", ordered, " ? 0 : threadIdx.x; ", element, " < ", n,
                 "; ", element, " += ", ordered, " ? 1 : blockDim.x)"));
  body_.Open(Cat("if (!", ordered, " || ", element, " % blockDim.x == threadIdx.x)"));
  in_element_ = true;
  inside();
  in_element_ = false;
  body_.Close();
  if (in_order) Line("if (tells) __syncthreads();");
  body_.Close();
  Barrier();
  if (!UsesTape()) return;
  Line("tape.top = *tape_top;");
  Barrier();
}

void RegionWriter::While(const Op& op) {
  const std::string id = Cat(source_.NextId());
  if (op.attributes.elements > 0) return MappedWhile(op, id);
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  const size_t first_export = FirstExport(op);
  std::vector<Place> carried;
  std::vector<Place> exports;
  for (size_t k = 0; k < c; ++k) {
    const ValueId from = op.operands[k];
    carried.push_back(
        NewVariable(Cat("c", id, "_", k), CarrierOf(source_.At(from)), source_.Count(from)));
    Copy(carried.back(), PlaceOf(from));
  }
  for (size_t k = 0; k < static_cast<size_t>(counts.exports); ++k) {
    const ValueId from = op.regions[0].yields[first_export + k];
    exports.push_back(
        NewVariable(Cat("x", id, "_", k), CarrierOf(source_.At(from)), source_.Count(from)));
  }
  WhileRun(op, carried, {}, exports, id, "0");
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (op.results[k] == ValueId::kNone) continue;
    Place place{PlaceKind::kOne, Cat("it", id), 1};
    if (k < c) place = carried[k];
    if (k >= c && k + 1 < op.results.size()) place = exports[k - c];
    SetPlace(op.results[k], place);
    StoreTaped(op.results[k]);
  }
}

// What the threads of a mapped loop write for all: a single element, too, is in common memory.
Place RegionWriter::NewJoined(const std::string& name, Carrier carrier, int64_t count) {
  if (!source_.block() || in_element_ || count != 1) return NewVariable(name, carrier, count);
  const std::string type = CTypeOf(carrier);
  Line(Cat(type, "* const ", name, "_of_all = reinterpret_cast<", type, "*>(work + ",
           source_.TakeWorkspace(8), ");"));
  return {PlaceKind::kSpread, name + "_of_all", 1};
}

// Behind the loop.
Place RegionWriter::TakeJoined(const Place& joined, Carrier carrier) {
  if (joined.kind != PlaceKind::kSpread || joined.count != 1) return joined;
  const std::string name = Cat("j", source_.NextId());
  Line(Cat("const ", CTypeOf(carrier), " ", name, " = ", joined["0"], ";"));
  return {PlaceKind::kOne, name, 1};
}

// Each element runs alone; operands lose their leading axis, results get it back.
void RegionWriter::MappedWhile(const Op& op, const std::string& id) {
  const WhileCounts counts = CountsOf(op);
  const size_t c = static_cast<size_t>(counts.carried);
  const size_t first_export = FirstExport(op);
  const int64_t n = op.attributes.elements;
  std::vector<Place> results;
  for (ValueId result : op.results) {
    results.push_back(result == ValueId::kNone
                          ? Place{}
                          : NewJoined(source_.Name(result), CarrierOf(source_.At(result)),
                                      source_.Count(result)));
  }
  std::vector<Place> operands;
  for (ValueId operand : op.operands) operands.push_back(PlaceOf(operand));
  const std::string element = Cat("e", id);
  EachMapped(n, element, mode_.decides, [&] {
    std::vector<Place> carried;
    std::vector<Place> mapped;
    std::vector<Place> exports;
    for (size_t k = 0; k < operands.size(); ++k) {
      const Place one = ElementOf(operands[k], n, element);
      if (k >= c) {
        mapped.push_back(one);
        continue;
      }
      carried.push_back(
          NewVariable(Cat("c", id, "_", k), CarrierOf(source_.At(op.operands[k])), one.count));
      Copy(carried.back(), one);
    }
    for (size_t k = 0; k < static_cast<size_t>(counts.exports); ++k) {
      const ValueId from = op.regions[0].yields[first_export + k];
      exports.push_back(
          NewVariable(Cat("x", id, "_", k), CarrierOf(source_.At(from)), source_.Count(from)));
    }
    const std::string around = element_;
    element_ = around == kFirst ? element : Cat("(", around, " * ", n, " + ", element, ")");
    WhileRun(op, carried, mapped, exports, id, element);
    element_ = around;
    for (size_t k = 0; k < results.size(); ++k) {
      Place from{PlaceKind::kOne, Cat("it", id), 1};
      if (k < c) from = carried[k];
      if (k >= c && k + 1 < results.size()) from = exports[k - c];
      const Place to = ElementOf(results[k], n, element);
      if (!to.set()) continue;
      EachElement(to, [&](const std::string& i) { return Cat(to[i], " = ", from[i], ";"); });
    }
  });
  crossed_ = true;  // elements lie with the thread of their run
  for (size_t k = 0; k < results.size(); ++k) {
    if (op.results[k] == ValueId::kNone) continue;
    SetPlace(op.results[k], TakeJoined(results[k], CarrierOf(source_.At(op.results[k]))));
    StoreTaped(op.results[k]);
  }
}

// The scope of an iteration; nothing is known of what the one before left.
void RegionWriter::OpenIteration(const std::string& head) {
  body_.Open(head);
  dirty_ = true;
}

void RegionWriter::CloseIteration() {
  if (crossed_ && source_.block() && !in_element_) Barrier();
  body_.Close();
  dirty_ = true;
  crossed_ = true;
}

void RegionWriter::BindArgs(const Region& region,
                            std::initializer_list<const std::vector<Place>*> lists) {
  size_t at = 0;
  for (const std::vector<Place>* list : lists) {
    for (const Place& place : *list) {
      const ValueId arg = region.args[at++];
      if (arg != ValueId::kNone) SetPlace(arg, place);
    }
  }
}

void RegionWriter::StopAtCap(const Op& op, const std::string& id) {
  Line(Cat("if (it", id, " == ", CapOf(op), ") { why", id, " = kMaxIter; break; }"));
}

void RegionWriter::WhileRun(const Op& op, const std::vector<Place>& carried,
                            const std::vector<Place>& mapped, const std::vector<Place>& exports,
                            const std::string& id, const std::string& run) {
  const bool cap_first = op.attributes.cap_order == CapOrder::kCapFirst;
  const std::string cap = CapOf(op);
  Line(Cat("int32_t it", id, " = 0;  // while ", op.attributes.site));
  Line(Cat("int why", id, " = kConverged;"));
  Line(Cat(source_.CType(op.regions[0].yields[0]), " lhs", id, " = 0;"));
  if (mode_.decides) {
    Line(Cat("RunTally run", id, ";"));
  }
  const Chain chain = OpenChain(op, id);
  OpenIteration("for (;;)");
  const std::string iteration = iteration_;
  if (cap_first) StopAtCap(op, id);
  iteration_ = Cat("(", iteration, " * (", cap, " + 1) + it", id, ")");
  OpenFrame(op.regions[0], chain);
  RunTest(op, carried, mapped, exports, id);
  if (!cap_first) StopAtCap(op, id);
  OpenFrame(op.regions[1], chain);
  RunBody(op, carried, mapped, exports);
  Line(Cat("++it", id, ";"));
  CloseIteration();
  iteration_ = iteration;
  Line(Cat("if (why", id, " == kMaxIter && !IsFinite(lhs", id, ")) why", id, " = kNonFinite;"));
  EndRecord(op, id);
  CloseChain(op, chain, run, Cat("it", id));
}

void RegionWriter::RunTest(const Op& op, const std::vector<Place>& carried,
                           const std::vector<Place>& mapped, const std::vector<Place>& exports,
                           const std::string& id) {
  const Region& test = op.regions[0];
  const size_t first_export = FirstExport(op);
  BindArgs(test, {&carried, &mapped});
  StoreTapedArgs(test);
  RunRegion(test);
  for (size_t k = 0; k < exports.size(); ++k) {
    Copy(exports[k], PlaceOf(test.yields[first_export + k]));
  }
  StopTests(op, id, test);
}

void RegionWriter::RunBody(const Op& op, const std::vector<Place>& carried,
                           const std::vector<Place>& mapped, const std::vector<Place>& exports) {
  const Region& body = op.regions[1];
  BindArgs(body, {&carried, &exports, &mapped});
  StoreTapedArgs(body);
  RunRegion(body);
  std::vector<Place> yields;
  std::vector<Carrier> carriers;
  for (ValueId yield : body.yields) {
    yields.push_back(PlaceOf(yield));
    carriers.push_back(CarrierOf(source_.At(yield)));
  }
  CopyAtOnce(carried, yields, carriers);
}

// What is decided behind an evaluated test.
void RegionWriter::StopTests(const Op& op, const std::string& id, const Region& test) {
  const Attributes& a = op.attributes;
  const std::string rhs = PlaceOf(test.yields[1])["0"];
  Line(Cat("lhs", id, " = ", PlaceOf(test.yields[0])["0"], ";"));
  const std::string lhs = Cat("lhs", id);
  Line(Cat("const bool held", id, " = ", ComparedText(a.comparison, lhs, rhs), ";"));
  if (mode_.decides) {
    const SiteText& site = source_.SiteOf(a.site);
    Line(Cat("if (", Speaking("tells"), ") TellTested(args, ", site.index, ", ran[", site.index,
             "], lhs", id, ");"));
  }
  if (a.has_entry) {
    body_.Open(Cat("if (it", id, " == 0)"));
    Line(Cat("const bool enters", id, " = ", lhs, " >= ", PlaceOf(test.yields[2])["0"], ";"));
    EntryRecord(op, id, test);
    Line(Cat("if (!enters", id, ") { why", id, " = kNotEntered; break; }"));
    body_.Close();
  }
  TestRecord(op, id, test);
  Line(Cat("if (held", id, ") break;"));
}

void RegionWriter::For(const Op& op) {
  const std::string id = Cat(source_.NextId());
  const std::string cap = CapOf(op);
  const Region& body = op.regions[0];
  std::vector<Place> carried;
  std::vector<Carrier> carriers;
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const ValueId from = op.operands[k];
    carriers.push_back(CarrierOf(source_.At(from)));
    carried.push_back(NewVariable(Cat("c", id, "_", k), carriers[k], source_.Count(from)));
    Copy(carried.back(), PlaceOf(from));
  }
  const Chain chain = OpenChain(op, id);
  OpenIteration(Cat("for (int32_t i", id, " = 0; i", id, " < ", cap, "; ++i", id, ")"));
  const std::string iteration = iteration_;
  iteration_ = Cat("(", iteration, " * ", cap, " + i", id, ")");
  if (body.args[0] != ValueId::kNone) {
    SetPlace(body.args[0], {PlaceKind::kOne, Cat("i", id), 1});
  }
  for (size_t k = 0; k < carried.size(); ++k) {
    if (body.args[k + 1] != ValueId::kNone) SetPlace(body.args[k + 1], carried[k]);
  }
  OpenFrame(body, chain);
  StoreTapedArgs(body);
  RunRegion(body);
  std::vector<Place> yields;
  for (ValueId yield : body.yields) yields.push_back(PlaceOf(yield));
  CopyAtOnce(carried, yields, carriers);
  CloseIteration();
  iteration_ = iteration;
  CloseChain(op, chain, "0", cap);
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (op.results[k] == ValueId::kNone) continue;
    SetPlace(op.results[k], carried[k]);
    StoreTaped(op.results[k]);
  }
}

}  // namespace simgrad::sim::cuda
