#pragma once
// Files of log-probabilities as llama-perplexity writes and reads them, so that engines can be
// compared with each other. Little-endian: "_logits_", u32 chunk length, i32 vocabulary size, i32
// chunks, i32 token ids [chunks][length], then for each chunk the rows of its scored half:
// length - 1 - length / 2 rows of row_words() 16-bit words (see perplexity_stats.h).

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// 16-bit words of one stored row: four for scale and minimum, then the codes, padded to even.
inline size_t row_words(int32_t vocab) {
    return 2 * ((static_cast<size_t>(vocab) + 1) / 2) + 4;
}

struct LogitsHeader {
    int32_t context = 0;
    int32_t vocab = 0;
    int32_t chunks = 0;
    std::vector<int32_t> tokens;
    size_t rows_per_chunk() const { return static_cast<size_t>(context - 1 - context / 2); }
};

/// Writes `<path>.part` and gives it its name when it is complete; an unfinished file is removed.
class LogitsWriter {
  public:
    /// UserError(kFailure) when the file cannot be made.
    LogitsWriter(const std::string& path, const LogitsHeader& header);
    ~LogitsWriter();
    LogitsWriter(const LogitsWriter&) = delete;
    LogitsWriter& operator=(const LogitsWriter&) = delete;
    /// UserError(kFailure): disk full.
    void write(std::span<const uint16_t> rows);
    void finish();

  private:
    void require_good();
    void remove_part();
    std::string path_;
    std::string part_path_;
    std::ofstream stream_;
    bool finished_ = false;
};

class LogitsReader {
  public:
    /// UserError(kModel): missing, not such a file, senseless numbers, wrong length.
    explicit LogitsReader(const std::string& path);
    const LogitsHeader& header() const { return header_; }
    /// Fills `rows` with what comes next.
    void read(std::span<uint16_t> rows);

  private:
    void read_header();
    [[noreturn]] void fail(const std::string& what) const;
    std::string path_;
    std::ifstream stream_;
    LogitsHeader header_;
};

}  // namespace tessera
