// The gated delta rule over prompt rows, by chunks. Several key heads go through the chunks
// together: rows of one token lie side by side, rows of one head pages apart. Head by head, a chunk
// whose rows lay in memory took 180 thousand cycles, one in the second-level cache 106 thousand.
#include <algorithm>
#include <array>

#include "backends/cpu/cpu_recurrent.h"

namespace tessera::cpu {
namespace {

/// Fewer items share more pages, more items are shared out better.
constexpr int64_t kItemsAThread = 4;

/// What a prompt item takes: of each key head [key_head, key_head + key_heads) the (value head,
/// strip) pairs, here units, [begin, end).
struct PromptShare {
    int64_t key_head, key_heads, begin, end;
    int64_t units() const { return end - begin; }
};

/// A share through all chunks of one sequence of prompt rows.
class PromptItem {
  public:
    PromptItem(const DeltaCall& call,
               const DeltaScratch& sizes,
               const PromptShare& share,
               float* scratch)
        : call_(call), sizes_(sizes), share_(share), strips_(scratch) {
        float* next = scratch + share.key_heads * share.units() * sizes.strip_floats;
        const auto take = [&](int64_t floats) {
            float* taken = next;
            next += floats;
            return taken;
        };
        keys_ = {.q_rows = take(sizes.key_floats),
                 .k_rows = take(sizes.key_floats),
                 .k_cols = take(sizes.key_floats),
                 .q_transposed = take(sizes.key_floats),
                 .k_transposed = take(sizes.key_floats),
                 .kk = take(sizes.square_floats),
                 .qk = take(sizes.square_floats),
                 .tiles = take(sizes.tile_floats)};
        gates_ = {.solve = take(sizes.square_floats),
                  .mix = take(sizes.square_floats),
                  .since = take(kChunkTokens),
                  .until = take(kChunkTokens),
                  .beta = take(kChunkTokens)};
        deltas_ = take(sizes.delta_floats);
    }

    void run(const Place& place) {
        const bool fresh = place.position == 0;
        over_units([&](const Unit& unit) {
            if (fresh)
                std::fill_n(strip(unit), sizes_.strip_floats, 0.0f);
            else
                call_.kernels.load_strip(state(place.slot, unit), rows(unit), call_.key_size,
                                         strip(unit));
        });
        if (call_.kernels.enter != nullptr) call_.kernels.enter();
        for (int64_t t = 0; t < place.rows;) {
            const int64_t to_border = kChunkTokens - (place.position + t) % kChunkTokens;
            const int64_t tokens = std::min(to_border, place.rows - t);
            Place part = place;
            part.begin += t;
            part.rows = tokens;
            over_units([&](const Unit& unit) { chunk(part, unit); });
            t += tokens;
            if (place.save_slot >= 0 && t == place.save_after) store(place.save_slot);
        }
        if (call_.kernels.leave != nullptr) call_.kernels.leave();
        store(place.slot);
    }

  private:
    /// A strip of a value head of a key head of the share.
    struct Unit {
        int64_t key_head, index;
    };
    template <class Body>
    void over_units(const Body& body) {
        for (Unit unit{share_.key_head, share_.begin};;) {
            body(unit);
            unit = next(unit);
            if (unit.key_head == share_.key_head && unit.index == share_.begin) return;
        }
    }
    bool last_of_key_head(const Unit& unit) const { return unit.index + 1 == share_.end; }
    bool last(const Unit& unit) const {
        return last_of_key_head(unit) && unit.key_head + 1 == share_.key_head + share_.key_heads;
    }
    /// The first one after the last.
    Unit next(const Unit& unit) const {
        if (!last_of_key_head(unit)) return {unit.key_head, unit.index + 1};
        return {last(unit) ? share_.key_head : unit.key_head + 1, share_.begin};
    }
    int64_t head(const Unit& unit) const {
        return unit.key_head + unit.index / sizes_.strips * call_.key_heads;
    }
    int64_t first_row(const Unit& unit) const {
        return unit.index % sizes_.strips * call_.kernels.strip_rows;
    }
    int64_t rows(const Unit& unit) const {
        return std::min(call_.kernels.strip_rows, call_.size - first_row(unit));
    }
    float* strip(const Unit& unit) const {
        const int64_t key_head = unit.key_head - share_.key_head;
        return strips_ +
               (key_head * share_.units() + unit.index - share_.begin) * sizes_.strip_floats;
    }
    float* state(int64_t slot, const Unit& unit) const {
        return call_.memory.state.row<float>(slot) +
               (head(unit) * call_.size + first_row(unit)) * call_.key_size;
    }
    void store(int64_t slot) {
        over_units([&](const Unit& unit) {
            call_.kernels.store_strip(strip(unit), rows(unit), call_.key_size, state(slot, unit));
        });
    }
    DeltaRun run_of_unit(const Place& part, const Unit& unit) const {
        return run_of(call_, part, head(unit), first_row(unit), rows(unit));
    }
    /// `part` or the chunk behind it, whichever the unit after `unit` works on, and how many of its
    /// rows exist.
    Place place_after(const Place& part, bool last, int64_t& exist) const {
        Place after = part;
        if (last) after.begin += part.rows;
        exist =
            last ? std::clamp<int64_t>(call_.v.rows() - after.begin, 0, kChunkTokens) : part.rows;
        return after;
    }
    /// The next unit's rows, and this unit's share of the next key head's.
    void look_ahead(const Place& part, const Unit& unit) {
        int64_t exist = 0;
        const DeltaRun then = run_of_unit(place_after(part, last(unit), exist), next(unit));
        upcoming_[0] = {then.v, then.v_stride, then.rows, exist};
        upcoming_[1] = {then.out, then.out_stride, then.rows, exist};
        const Unit of_key_head{unit.key_head, share_.end - 1};
        Place beyond = place_after(part, last(of_key_head), exist);
        const int64_t row = exist * (unit.index - share_.begin) / share_.units();
        const int64_t count = exist * (unit.index + 1 - share_.begin) / share_.units() - row;
        beyond.begin += row;
        const DeltaRun keys = run_of_unit(beyond, next(of_key_head));
        upcoming_[2] = {keys.q, keys.q_stride, call_.key_size, count};
        upcoming_[3] = {keys.k, keys.k_stride, call_.key_size, count};
    }
    void chunk(const Place& part, const Unit& unit) {
        const bool opens = unit.index == share_.begin;
        if (opens) call_.kernels.open_chunk(run_of(call_, part, unit.key_head, 0, 0), keys_);
        look_ahead(part, unit);
        DeltaRun run = run_of_unit(part, unit);
        run.order = unit.index - share_.begin;
        run.next_strip = last_of_key_head(unit) ? nullptr : strip(next(unit));
        run.of_same_head = !opens && unit.index % sizes_.strips != 0;
        run.next_of_head = next(unit).index % sizes_.strips != 0;
        run.upcoming = upcoming_.data();
        run.upcoming_count = std::ssize(upcoming_);
        if (opens || unit.index % sizes_.strips == 0) call_.kernels.open_gates(run, keys_, gates_);
        call_.kernels.run_strip(run, keys_, gates_, deltas_, strip(unit));
    }

    const DeltaCall& call_;
    const DeltaScratch& sizes_;
    const PromptShare share_;
    float* strips_;
    float* deltas_;
    ChunkKeys keys_;
    ChunkGates gates_;
    std::array<Upcoming, 4> upcoming_;
};

}  // namespace

void run_prompts(const DeltaCall& call,
                 ThreadPool& pool,
                 const DeltaScratch& sizes,
                 int64_t sequences,
                 float* scratch) {
    const int64_t units = call.heads / call.key_heads * sizes.strips;
    const int64_t wholes = sequences * call.key_heads;
    const int32_t threads = pool.size();
    // More shares than needed cost products of keys and queries that all of them make.
    const bool enough = wholes >= 4 * threads || wholes % threads == 0;
    const int64_t shares = enough ? 1 : std::min(units, ceil_div(2 * threads, wholes));
    const int64_t together =
        shares > 1 ? 1 : std::clamp<int64_t>(wholes / (kItemsAThread * threads), 1, sizes.together);
    const int64_t of_sequence = ceil_div(call.key_heads, together) * shares;
    const int64_t products = call.batch.prompt_rows * call.heads * call.size * call.key_size;
    run_items(pool, sequences * of_sequence, products >= kWorthProducts,
              [&](int64_t item, int32_t thread) {
                  const Place place = place_of(call.batch, item / of_sequence);
                  if (place.rows == 0) return;
                  const int64_t part = item % shares;
                  const int64_t key_head = item % of_sequence / shares * together;
                  const PromptShare share{
                      .key_head = key_head,
                      .key_heads = std::min(together, call.key_heads - key_head),
                      .begin = units * part / shares,
                      .end = units * (part + 1) / shares};
                  PromptItem(call, sizes, share, scratch + thread * sizes.total).run(place);
              });
}

}  // namespace tessera::cpu
