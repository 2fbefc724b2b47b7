#include "tools/perplexity_file.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace tessera {
namespace {

constexpr std::string_view kMagic = "_logits_";

template <class T>
void write_values(std::ofstream& stream, std::span<const T> values) {
    stream.write(reinterpret_cast<const char*>(values.data()),
                 static_cast<std::streamsize>(values.size_bytes()));
}

template <class T>
bool read_values(std::ifstream& stream, std::span<T> values) {
    stream.read(reinterpret_cast<char*>(values.data()),
                static_cast<std::streamsize>(values.size_bytes()));
    return stream.good();
}

}  // namespace

LogitsWriter::LogitsWriter(const std::string& path, const LogitsHeader& header)
    : path_(path), part_path_(path + ".part") {
    const std::filesystem::file_status status = std::filesystem::status(path);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        throw UserError(ExitCode::kFailure, path + ": exists and is not a regular file");
    stream_.open(part_path_, std::ios::binary);
    if (!stream_)
        throw UserError(ExitCode::kFailure,
                        fmt::format("{}: cannot write: {}", part_path_, std::strerror(errno)));
    stream_.write(kMagic.data(), static_cast<std::streamsize>(kMagic.size()));
    const std::array<int32_t, 3> numbers{header.context, header.vocab, header.chunks};
    write_values<int32_t>(stream_, numbers);
    write_values<int32_t>(stream_, header.tokens);
    // Nobody removes the part of a writer that was never made.
    if (!stream_.flush()) remove_part();
    require_good();
}

LogitsWriter::~LogitsWriter() {
    if (!finished_) remove_part();
}

void LogitsWriter::remove_part() {
    stream_.close();
    std::error_code ignored;
    std::filesystem::remove(part_path_, ignored);
}

void LogitsWriter::require_good() {
    if (!stream_) throw UserError(ExitCode::kFailure, part_path_ + ": cannot write: disk full?");
}

void LogitsWriter::write(std::span<const uint16_t> rows) {
    write_values(stream_, rows);
    require_good();
}

void LogitsWriter::finish() {
    stream_.close();
    require_good();
    std::error_code error;
    std::filesystem::rename(part_path_, path_, error);
    if (error)
        throw UserError(ExitCode::kFailure,
                        fmt::format("{}: cannot rename: {}", part_path_, error.message()));
    finished_ = true;
}

LogitsReader::LogitsReader(const std::string& path) : path_(path), stream_(path, std::ios::binary) {
    if (!stream_) fail(std::string("cannot read: ") + std::strerror(errno));
    read_header();
}

void LogitsReader::fail(const std::string& what) const {
    throw UserError(ExitCode::kModel, path_ + ": " + what);
}

void LogitsReader::read_header() {
    std::array<char, kMagic.size()> magic{};
    if (!read_values<char>(stream_, magic) ||
        std::string_view(magic.data(), magic.size()) != kMagic)
        fail("not a file of log-probabilities (those start with \"_logits_\")");
    std::array<int32_t, 3> numbers{};
    if (!read_values<int32_t>(stream_, numbers)) fail("ends inside its header");
    header_.context = numbers[0];
    header_.vocab = numbers[1];
    header_.chunks = numbers[2];
    constexpr int32_t kLargest = 1 << 24;
    if (header_.context < 4 || header_.context > kLargest || header_.vocab < 1 ||
        header_.vocab > kLargest || header_.chunks < 1 || header_.chunks > kLargest)
        fail(fmt::format("senseless numbers: {} chunks of {} tokens, vocabulary {}", header_.chunks,
                         header_.context, header_.vocab));
    const uint64_t chunks = static_cast<uint64_t>(header_.chunks);
    const uint64_t tokens = chunks * static_cast<uint64_t>(header_.context);
    const uint64_t rows = chunks * header_.rows_per_chunk();
    const uint64_t row_bytes = row_words(header_.vocab) * sizeof(uint16_t);
    const uint64_t header_bytes = kMagic.size() + sizeof(numbers) + tokens * sizeof(int32_t);
    const uint64_t found = std::filesystem::file_size(path_);
    // A file that holds the rows of at least one whole chunk per header is as long as it says; the
    // division keeps the comparison away from overflow.
    if (found < header_bytes || (found - header_bytes) / row_bytes < rows)
        fail(fmt::format("is {} bytes long, too short for {} chunks of {} tokens", found,
                         header_.chunks, header_.context));
    header_.tokens.resize(static_cast<size_t>(tokens));
    if (!read_values<int32_t>(stream_, header_.tokens)) fail("ends inside its tokens");
    for (const int32_t token : header_.tokens)
        if (token < 0 || token >= header_.vocab)
            fail(fmt::format("token {} is outside its vocabulary of {}", token, header_.vocab));
}

void LogitsReader::read(std::span<uint16_t> rows) {
    if (!read_values(stream_, rows)) fail("ends inside its log-probabilities");
}

}  // namespace tessera
