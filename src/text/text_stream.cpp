// Stop strings are found in the stream exactly as in the whole text: the cut is where the earliest
// stop string begins (`find`, smallest over all stops), however the bytes are split. So a match is
// acted on only when no possible match that begins before it is still open.

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/tokenizer_utf8.h"

namespace tessera {
namespace {

constexpr size_t kNone = std::string_view::npos;

/// Where the earliest complete stop string begins.
size_t first_stop(std::string_view held, const std::vector<std::string>& stops) {
    size_t first = kNone;
    for (const std::string& stop : stops) {
        if (!stop.empty()) first = std::min(first, held.find(stop));
    }
    return first;
}

/// Where the earliest stop string begins of which only the start is there yet.
size_t first_open_stop(std::string_view held, const std::vector<std::string>& stops) {
    size_t first = kNone;
    for (const std::string& stop : stops) {
        if (stop.empty()) continue;
        const size_t begin = held.size() - std::min(held.size(), stop.size() - 1);
        for (size_t at = begin; at < std::min(first, held.size()); ++at) {
            if (stop.starts_with(held.substr(at))) first = at;
        }
    }
    return first;
}

}  // namespace

std::string TextStream::push(std::string_view bytes) {
    if (stopped_) return {};
    held_ += bytes;
    const size_t complete = first_stop(held_, stops_);
    const size_t open = first_open_stop(held_, stops_);
    if (complete != kNone && complete < open) {
        stopped_ = true;
        std::string shown = held_.substr(0, complete);
        held_.clear();
        return shown;
    }
    size_t end = std::min(open, held_.size());
    end -= utf8::incomplete_tail(std::string_view(held_).substr(0, end));
    std::string shown = held_.substr(0, end);
    held_.erase(0, end);
    return shown;
}

std::string TextStream::finish() {
    if (stopped_) return {};
    const size_t complete = first_stop(held_, stops_);
    stopped_ = complete != kNone;
    std::string shown = held_.substr(0, complete);
    held_.clear();
    return shown;
}

}  // namespace tessera
