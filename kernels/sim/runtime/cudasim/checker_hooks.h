// What the simulator tells the checker (cudasim/checker.h), and what Python calls.
#pragma once

#include "cudasim/checker_state.h"

namespace cudasim {

inline void checker_launch_begins(
    dim3 grid, dim3 block, size_t shared_bytes, const void* kernel, const void* arguments, size_t argument_bytes) {
  Checker& c = checker();
  c.one_launch.lock();
  c.operands = &operands_of_this_thread;
#ifdef __linux__
  dl_iterate_phdr(note_thread_locals, nullptr);
#endif
  c.arguments = range_of(arguments, argument_bytes);
  if (!c.trace.on) return;
  c.dynamic_object = -1;
  for (size_t i = 0; i < c.operands->count(); ++i) {
    Operand& o = (*c.operands)[i];
    if (o.trace != c.trace.number) o.trace = c.trace.number, o.object = -1;
  }
  const auto triple = [](dim3 d) {
    return "[" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + "]";
  };
  c.trace.launch_begins("{\"grid\":" + triple(grid) + ",\"block\":" + triple(block) +
                        ",\"dynamic_shared_bytes\":" + std::to_string(shared_bytes) +
                        ",\"kernel\":" + std::to_string(reinterpret_cast<uintptr_t>(kernel) - c.image.base) + "}");
}

inline void checker_launch_ends() {
  Checker& c = checker();
  running_thread = {};
  c.one_launch.unlock();
}

inline void checker_cluster_begins(int blocks) {
  Checker& c = checker();
  c.cluster_blocks = blocks;
  while (int(c.blocks.size()) < blocks) {
    auto* block = new CheckedBlock;
    block->rank = uint32_t(c.blocks.size());
    block->statics.cover(c.statics.low, c.statics.high);
    c.blocks.push_back(block);
  }
  for (int rank = 0; rank < blocks; ++rank) c.blocks[size_t(rank)]->copy = 0;
  SharedShadow::cluster_begins();
}

inline void checker_block_runs(int rank) {
  checker().own = checker().blocks[size_t(rank)];
}

inline void checker_block_begins(uint3 index, void* dynamic_shared, size_t bytes, void* copy, int threads) {
  Checker& c = checker();
  CheckedBlock& own = *c.own;
  const auto low = reinterpret_cast<uintptr_t>(dynamic_shared);
  own.dynamic.cover(low, low + bytes);
  own.copy = reinterpret_cast<uintptr_t>(copy);
  own.running = range_of(current, sizeof *current);
  own.index = index;
  own.block = index.x + gridDim.x * (index.y + gridDim.y * index.z);
  c.threads = threads;
  own.shadow.block_begins(own.rank, c.cluster_blocks == 1);
  own.unwritten = {}, own.visit = {}, own.returned = false;
  for (const Variable& v : c.variables) {  // to NaNs, as a GPU leaves it undefined
    if (v.owner == Variable::kShared) fill_bytes(reinterpret_cast<char*>(v.low), 0xff, v.high - v.low);
  }
  for (int t = 0; t < threads; ++t) own.calls[t].depth = 0, own.sequence[t] = 0, own.stacks[t] = 0;
}

// Its memory is gone: nobody may have touched it since the last barrier of the cluster that it knows of.
inline void checker_block_returned() {
  CheckedBlock& own = *checker().own;
  own.returned = true;
  const Visit& v = own.visit;
  if (!v.found || SharedShadow::precedes(v.phase, own.shadow.most_waited())) return;
  report_of_other(v.block, v.thread, v.site,
                  v.what + " of the shared memory of block " + text(own.index) +
                      ", which may have ended by then: no barrier of the cluster lies between the access and its end");
}

// An unwritten read that no race explains is reported now.
inline std::string unwritten_sentence(const UnwrittenRead& read) {
  return read.what + ", which no thread of the " + (checker().cluster_blocks > 1 ? "cluster" : "block") +
         " has written";
}

inline void checker_block_ends() {
  Checker& c = checker();
  running_thread = {};
  const UnwrittenRead read = c.own->unwritten;
  if (!read.found) return;
  blame(blockIdx, read.thread, c.sites.text(read.site, c.image) + ": " + unwritten_sentence(read));
}

inline void checker_barrier_opened() {
  CheckedBlock& own = *checker().own;
  const UnwrittenRead& read = own.unwritten;
  if (read.found && !read.far) report(read.thread, read.site, unwritten_sentence(read), true);
  own.shadow.barrier_opened();
}

inline void checker_cluster_barrier_opened() {
  Checker& c = checker();
  for (int rank = 0; rank < c.cluster_blocks; ++rank) {
    const CheckedBlock& block = *c.blocks[size_t(rank)];
    const UnwrittenRead& read = block.unwritten;
    if (read.found && !block.returned) report_of_other(block.index, read.thread, read.site, unwritten_sentence(read));
  }
}

inline void checker_warp_synced(int warp, unsigned mask) {
  checker().own->shadow.warp_synced(warp, mask);
}

inline void record_meeting(Kind kind, const char* name, unsigned mask, const char* file, int line) {
  Checker& c = checker();
  if (!c.trace.on) return;
  const uint32_t site = c.sites.number(0, c.own->calls[running_thread.index], file, line);
  record({0, mask, kind, Form::kPieces, site}, Space::kNone, c.trace.name(name), 0);
}
inline void checker_warp_function(const char* name, int, unsigned mask, const char* file, int line) {
  record_meeting(Kind::kWarpFunction, name, mask, file, line);
}
inline void checker_barrier(const char* name, const char* file, int line) {
  record_meeting(Kind::kBarrier, name, 0, file, line);
}

inline void checker_cluster_arrive(const char* name, const char* file, int line) {
  record_meeting(Kind::kBarrier, name, 0, file, line);
  checker().own->shadow.cluster_arrive(running_thread.index);
}
inline void checker_cluster_wait(const char* name, const char* file, int line) {
  record_meeting(Kind::kBarrier, name, 0, file, line);
  checker().own->shadow.cluster_wait(running_thread.index);
}

void checker_atomic(const void* p, size_t bytes, const void* return_address) {
  on_access(p, bytes, Kind::kAtomic, Form::kScalar, const_cast<void*>(return_address));
}

// thread -1: the OS thread itself.
inline void checker_thread_runs(int thread, const char* stack, size_t bytes) {
  Checker& c = *checker_or_null;
  running_thread.index = thread;
  running_thread.stack = reinterpret_cast<uintptr_t>(stack);
  running_thread.stack_bytes = 0;  // until the simulator is left
  if (thread < 0) return;
  running_thread.calls = &c.own->calls[thread];
  c.own->stacks[thread] = running_thread.stack, c.stack_bytes = bytes;
}
inline void checker_enters_simulator() {
  running_thread.stack_bytes = 0;
}
inline void checker_leaves_simulator() {
  running_thread.stack_bytes = running_thread.index < 0 ? 0 : checker_or_null->stack_bytes;
}

}  // namespace cudasim

// The operands of this thread's calls that follow, until they are forgotten: with any registered, every access to
// global memory must lie in one of them.
CUDASIM_EXPORT void cudasim_operand(const char* name, const void* data, size_t bytes, int writable) {
  cudasim::operands_of_this_thread.add(name, data, bytes, writable != 0);
}
CUDASIM_EXPORT void cudasim_forget_operands() {
  cudasim::operands_of_this_thread.forget();
}

// Records all launches from here to cudasim_trace_stop, which writes them to a file: 0, or what errno says.
CUDASIM_EXPORT void cudasim_trace_start() {
  cudasim::Checker& c = cudasim::checker();
  const std::lock_guard<std::mutex> no_launch(c.one_launch);
  c.trace.start();
  c.variable_objects.assign(c.variables.size(), -1);
}
CUDASIM_EXPORT int cudasim_trace_stop(const char* path) {
  cudasim::Checker& c = cudasim::checker();
  const std::lock_guard<std::mutex> no_launch(c.one_launch);
  const int error = c.trace.write(path, c.image, c.sites.all());
  c.trace.clear();
  return error;
}
