// The checker: what a checked build does at each load, store and atomic of a kernel, and what it is told in between.
//
// The kernel's file is compiled with -fsanitize=thread, which makes the compiler call a function before each access of
// unmodified code. The real runtime of that sanitizer is not linked: tsan_callbacks.h defines those functions, and they
// end up in examine() below. kernels/sim/README.md tells what is seen so, and what is not.
#pragma once

#include "cudasim/checker_state.h"

namespace cudasim {

struct Access {
  uintptr_t address;
  size_t bytes;
  Kind kind;
  Form form;
  uint32_t site;
};

// "reads 4 bytes"
inline std::string doing(const Access& a) {
  const char* verb = a.kind == Kind::kRead ? "reads " : a.kind == Kind::kWrite ? "writes " : "atomically updates ";
  return verb + count_of(a.bytes);
}

[[noreturn]] inline void report(const Access& a, const std::string& what, bool explained = false) {
  report(running_thread.index, a.site, doing(a) + " " + what, explained);
}

[[noreturn]] inline void report_beside(const Access& a, uintptr_t low, uintptr_t high, const std::string& what) {
  report(a, beside(a.address, a.bytes, low, high, what));
}

inline void record(const Access& a, Space space, int object, int64_t offset) {
  Checker& c = checker();
  const int t = running_thread.index;
  if (!c.trace.add({c.trace.launch(), uint16_t(t), int16_t(object), a.kind, space, c.own->block, c.own->sequence[t]++,
                    a.site, uint32_t(a.bytes), offset}))
    report(t, a.site, "the trace is full; trace a smaller launch");
}

// `name` and `start`: of what it lies in.
CUDASIM_ALWAYS_INLINE void check_alignment(const Access& a, const char* name, uintptr_t start) {
  const size_t wanted = a.form == Form::kPieces ? 1 : a.form == Form::kScalar && a.bytes > 8 ? 8 : a.bytes;
  if (__builtin_expect(a.address % wanted == 0, true)) return;
  const std::string at = *name ? "at byte " + std::to_string(a.address - start) + " of " + name + ", " : "";
  report(a, at + "whose address is not a multiple of " + std::to_string(wanted) +
                ": a GPU refuses it (misaligned address)");
}

// ---- shared memory
// A piece of a block's shared memory and whose it is.
struct SharedPlace {
  CheckedBlock& owner;
  SharedSegment& segment;

  std::string of_block() const { return &owner == checker().own ? "" : " of block " + text(owner.index); }
};

[[noreturn]] inline void report_race(const Access& a,
                                     const SharedShadow::Race& race,
                                     const std::string& name,
                                     uintptr_t start) {
  Checker& c = checker();
  const int other = int(race.other.thread);
  const CheckedBlock& other_block = *c.blocks[race.other.rank];
  const bool near = &other_block == c.own;
  const char* does = race.kind == Kind::kRead ? " reads" : race.kind == Kind::kWrite ? " writes" : " updates";
  const char* missing = !near                                     ? "no barrier of the cluster"
                        : other / 32 == running_thread.index / 32 ? "no __syncwarp and no barrier"
                                                                  : "no barrier";
  report(a,
         "at byte " + std::to_string(a.address - start) + " of __shared__ " + name + ": a race with " +
             text_of_threads({other}, blockDim) + (near ? "" : " of block " + text(other_block.index)) + ", which" +
             does + " byte " + std::to_string(a.address - start + race.byte) + " at " +
             c.sites.text(race.other.site, c.image) + "; " + missing + " lies between the two",
         true);
}

inline void examine_shared(const Access& a, const SharedPlace& at, const char* name, uintptr_t start) {
  CheckedBlock& own = *checker().own;
  const int t = running_thread.index;
  check_alignment(a, name, start);
  const auto verdict = own.shadow.note(at.segment.cells + (a.address - at.segment.low), a.bytes, a.kind, uint32_t(t),
                                       a.site, at.owner.rank);
  if (verdict.race.found) report_race(a, verdict.race, name + at.of_block(), start);
  if (!verdict.unwritten || own.unwritten.found) return;
  // Of a structure that is copied whole, padding was never written. CUDA's own vectors have none.
  if (a.form != Form::kVector && verdict.unwritten < a.bytes) return;
  own.unwritten = {true, &at.owner != &own, t, a.site,
                   doing(a) + " at byte " + std::to_string(a.address - start + verdict.first_unwritten) +
                       " of __shared__ " + name + at.of_block()};
}

inline void examine_dynamic(const Access& a, CheckedBlock& owner) {
  Checker& c = checker();
  const SharedSegment& s = owner.dynamic;
  const SharedPlace at{owner, owner.dynamic};
  if (a.address < s.low || a.address + a.bytes > s.high)
    report_beside(a, s.low, s.high, "the dynamic shared memory" + at.of_block());
  examine_shared(a, at, "(dynamic)", s.low);
  if (!c.trace.on) return;
  if (c.dynamic_object < 0) c.dynamic_object = c.trace.add_object("dynamic", Space::kShared, s.high - s.low, 0, "");
  record(a, Space::kShared, c.dynamic_object, int64_t(a.address - s.low));
}

[[noreturn]] inline void report_beside_variable(const Access& a, const std::string& of_block) {
  const Variable* nearest = nullptr;
  uintptr_t distance = UINTPTR_MAX;
  for (const Variable& v : checker().variables) {
    const uintptr_t d = a.address < v.low ? v.low - a.address : a.address >= v.high ? a.address - v.high : 0;
    if ((v.owner == Variable::kShared || (v.owner == Variable::kKernel && of_block.empty())) && d < distance)
      nearest = &v, distance = d;
  }
  if (!nearest) report(a, "of the simulator's own data");
  const bool shared = nearest->owner == Variable::kShared;
  report_beside(a, nearest->low, nearest->high,
                shared ? "__shared__ " + nearest->name + of_block : readable(nearest->symbol));
}

// The library's own data: shared variables, and what else the kernel's file defines. Of another block of the cluster,
// with the address that the variable has for its own block.
inline void examine_variable(const Access& a, CheckedBlock& owner) {
  Checker& c = checker();
  if (c.variables.empty()) return;
  const Variable* v = c.variables.data();
  size_t below = 0, above = c.variables.size();  // the last one that starts at or before the address
  while (above - below > 1) (v[(below + above) / 2].low <= a.address ? below : above) = (below + above) / 2;
  const Variable& found = v[below];
  const bool inside = a.address >= found.low && a.address + a.bytes <= found.high;
  const SharedPlace at{owner, owner.statics};
  if (inside && (found.owner == Variable::kKernel || found.owner == Variable::kGuard) && &owner == c.own) return;
  if (!inside || found.owner != Variable::kShared) report_beside_variable(a, at.of_block());
  examine_shared(a, at, found.name.c_str(), found.low);
  if (!c.trace.on) return;
  int& object = c.variable_objects[below];
  if (object < 0) object = c.trace.add_object(found.name, Space::kShared, found.high - found.low, 0, found.function);
  record(a, Space::kShared, object, int64_t(a.address - found.low));
}

// ---- shared memory of another block of the cluster
inline void note_visit(const Access& a, CheckedBlock& owner) {
  const CheckedBlock& own = *checker().own;
  const std::string whose = " of the shared memory of block " + text(owner.index);
  if (owner.returned)
    report(a, whose.substr(1) + ", which has ended: a barrier of the cluster must come after the last access");
  const uint32_t phase = own.shadow.arrived(running_thread.index);
  if (owner.visit.found && owner.visit.phase > phase) return;
  owner.visit = {true, phase, a.site, running_thread.index, own.index, doing(a)};
}

inline bool examine_other_block(const Access& a) {
  Checker& c = checker();
  const size_t gap = kDynamicGapBytes;
  for (int rank = 0; rank < c.cluster_blocks; ++rank) {
    CheckedBlock& owner = *c.blocks[size_t(rank)];
    const bool dynamic = a.address + gap >= owner.dynamic.low && a.address < owner.dynamic.high + gap;
    const uintptr_t bytes = c.statics.high - c.statics.low;
    if (!dynamic && (!owner.copy || a.address + gap < owner.copy || a.address >= owner.copy + bytes + gap)) continue;
    if (&owner == c.own)
      report(a,
             "of its own block's shared memory by an address that another block made with shared_of, which the "
             "simulator does not know");
    note_visit(a, owner);
    if (dynamic) return examine_dynamic(a, owner), true;
    Access moved = a;
    moved.address += c.statics.low - owner.copy;
    return examine_variable(moved, owner), true;
  }
  return false;
}

// ---- global memory
[[noreturn]] inline void report_outside(const Access& a) {
  Checker& c = checker();
  if (const Operand* o = c.operands->find(a.address, a.bytes, false))
    report(a, "at byte " + std::to_string(a.address - o->low) + " of " + o->name + ", which the kernel may only read");
  const Operand* nearest = nullptr;
  uintptr_t distance = 1 << 20;
  std::string all;
  for (size_t i = 0; i < c.operands->count(); ++i) {
    const Operand& o = (*c.operands)[i];
    const uintptr_t d = a.address < o.low ? o.low - a.address : a.address >= o.high ? a.address - o.high : 0;
    if (d < distance && (o.writable || a.kind == Kind::kRead)) nearest = &o, distance = d;
    all += (i ? ", " : "") + o.name + " (" + count_of(o.high - o.low) + ")";
  }
  if (nearest) report_beside(a, nearest->low, nearest->high, nearest->name);
  char number[32];
  std::snprintf(number, sizeof number, "0x%llx", static_cast<unsigned long long>(a.address));
  report(a, std::string("at ") + number + ", which lies in no operand of the call: " + all);
}

// An address that is in no operand: the kernel's constants are right, all else is wrong if there are operands.
inline bool is_constant_or_unknown(const Access& a) {
  Checker& c = checker();
  if (a.address >= c.image.low && a.address < c.image.high) return true;
  if (a.address < 65536) report(a, "at address " + std::to_string(a.address) + ": a null pointer");
  for (int t = 0; t < c.threads; ++t) {
    if (c.own->stacks[t] && a.address - c.own->stacks[t] < c.stack_bytes)
      report(a, "of a local variable of " + text_of_threads({t}, blockDim) + "; local memory is a thread's own");
  }
  // Where we do not know our own data (not on Linux), only what lies close to an operand is surely wrong.
  if (c.operands->count() && (c.image.high || c.operands->near(a.address, 4096))) report_outside(a);
  return false;
}

inline void examine_global(const Access& a) {
  Checker& c = checker();
  Operand* o = c.operands->find(a.address, a.bytes, a.kind != Kind::kRead);
  if (!o && is_constant_or_unknown(a)) return;
  check_alignment(a, o ? o->name.c_str() : "", o ? o->low : 0);
  if (!c.trace.on) return;
  if (o && o->object < 0) o->object = c.trace.add_object(o->name, Space::kGlobal, o->high - o->low, o->low, "");
  record(a, Space::kGlobal, o ? o->object : -1, int64_t(o ? a.address - o->low : a.address));
}

// An access of the running thread, outside its own stack.
__attribute__((noinline)) inline void examine(
    uintptr_t address, size_t bytes, Kind kind, Form form, uintptr_t pc, uintptr_t frame) {
  Checker& c = *checker_or_null;
  if (c.thread_locals.has(address) || c.own->running.has(address) || c.arguments.has(address)) return;
  const OwnCode own;
  running_thread.calls->settle(frame);
  const Access a{address, bytes, kind, form, c.sites.number(pc, *running_thread.calls)};
  CheckedBlock& block = *c.own;
  if (address + kDynamicGapBytes >= block.dynamic.low && address < block.dynamic.high + kDynamicGapBytes) {
    examine_dynamic(a, block);
  } else if (address >= c.image.data_low && address < c.image.data_high) {
    examine_variable(a, block);
  } else if (c.cluster_blocks == 1 || !examine_other_block(a)) {
    examine_global(a);
  }
  running_block()->maybe_preempt();
}

CUDASIM_ALWAYS_INLINE void on_access(const volatile void* p, size_t bytes, Kind kind, Form form, void* pc) {
  const auto address = reinterpret_cast<uintptr_t>(p), frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const RunningThread& r = running_thread;
  // Also false on the stack of any other OS thread, which may run the launchers of this library meanwhile.
  if (frame - r.stack >= r.stack_bytes || address - r.stack < r.stack_bytes) return;
  examine(address, bytes, kind, form, reinterpret_cast<uintptr_t>(pc), frame);
}

}  // namespace cudasim

#include "cudasim/checker_hooks.h"
#include "cudasim/tsan_callbacks.h"
