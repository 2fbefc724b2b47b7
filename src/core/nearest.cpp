#include "core/nearest.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace tessera {
namespace {

// Names from files may be megabytes long; nobody mistypes those, and the distance is quadratic.
constexpr size_t kLongestName = 256;

char folded(char letter) {
    if (letter >= 'A' && letter <= 'Z') return static_cast<char>(letter - 'A' + 'a');
    return letter == '-' ? '_' : letter;
}

std::string folded(std::string_view name) {
    std::string result(name);
    for (char& letter : result) letter = folded(letter);
    return result;
}

/// Restricted Damerau-Levenshtein distance, three rows of the table at a time.
size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> before(b.size() + 1);
    std::vector<size_t> above(b.size() + 1);
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) above[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            row[j] = std::min({replaced, above[j] + 1, row[j - 1] + 1});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
        std::swap(before, above);
        std::swap(above, row);
    }
    return above[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view unknown, std::span<const std::string_view> known) {
    if (unknown.empty() || unknown.size() > kLongestName) return {};
    const std::string target = folded(unknown);
    size_t best_distance = std::numeric_limits<size_t>::max();
    std::string_view best;
    for (const std::string_view name : known) {
        if (name.empty() || name.size() > kLongestName) continue;
        const size_t distance = edit_distance(target, folded(name));
        const size_t longer = std::max(name.size(), unknown.size());
        const bool close = distance < longer && distance <= std::max<size_t>(2, longer / 3);
        if (close && distance < best_distance) {
            best_distance = distance;
            best = name;
        }
    }
    return std::string(best);
}

}  // namespace tessera
