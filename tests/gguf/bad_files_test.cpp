// Damaged and hostile files: each gives exactly its one line (scripts/oracles/bad_gguf.py wrote
// files and lines), and no damage reaches memory outside the file (run under ASan).

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <span>

#include "core/error.h"
#include "gguf/gguf.h"
#include "gguf/safetensors.h"
#include "tests/core/stored_data.h"

namespace tessera {
namespace {

using Bytes = std::span<const std::byte>;

/// The message of the UserError that `action` throws; the folder of `path` is cut from its start.
std::string message_of(const std::string& path, const std::function<void()>& action) {
    try {
        action();
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kModel) << path;
        const std::string folder = path.substr(0, path.rfind('/') + 1);
        const std::string message = error.what();
        return message.starts_with(folder) ? message.substr(folder.size()) : message;
    }
    return "no error";
}

void open_any(const std::string& path) {
    if (path.ends_with(".gguf"))
        GgufFile::open(path);
    else
        SafetensorsFile::open(path);
}

void parse_any(Bytes bytes, const std::string& path) {
    if (path.ends_with(".gguf"))
        GgufFile::parse(bytes, path);
    else
        SafetensorsFile::parse(bytes, path);
}

// Guards against L1, L2, L4, L5, L6, L9, L10 and M10 of the fault list: a crash, a file that is
// taken, or a message that does not say what is wrong.
TEST(BadFiles, EachGivesItsMessage) {
    const std::string folder = test::data_path("gguf/bad/");
    const auto rows = test::read_table(folder + "messages.tsv");
    size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        files += entry.path().extension() == ".tsv" ? 0 : 1;
    ASSERT_EQ(rows.size(), files);
    ASSERT_GT(files, 100u);
    for (const std::vector<std::string>& row : rows) {
        const std::string path = folder + row.at(0);
        EXPECT_EQ(message_of(path, [&] { open_any(path); }), row.at(1));
        const auto bytes = test::read_vector<std::byte>(path);  // an exact allocation, for ASan
        EXPECT_EQ(message_of(path, [&] { parse_any(bytes, path); }), row.at(1));
    }
}

// Guards against shards that are mixed up, missing or repeated being merged into one model.
TEST(BadFiles, SplitsGiveTheirMessages) {
    const std::string folder = test::data_path("gguf/split/");
    for (const std::vector<std::string>& row : test::read_table(folder + "messages.tsv")) {
        const std::string path = folder + row.at(0);
        EXPECT_EQ(message_of(path, [&] { open_any(path); }), row.at(1));
    }
}

// Guards against a hang or a raw system message where the path itself is the fault.
TEST(BadFiles, PathsThatAreNoModelFile) {
    const std::string folder = test::data_path("gguf/");
    EXPECT_EQ(message_of(folder + "nothing.gguf", [&] { GgufFile::open(folder + "nothing.gguf"); }),
              "nothing.gguf: cannot open: No such file or directory");
    EXPECT_EQ(message_of(folder + "bad", [&] { GgufFile::open(folder + "bad"); }),
              "bad: is a directory, not a model file");
    EXPECT_EQ(message_of("/dev/null", [&] { GgufFile::open("/dev/null"); }),
              "null: is not a regular file");
    const auto empty = std::filesystem::temp_directory_path() / "tessera_empty.gguf";
    std::ofstream(empty).close();
    EXPECT_EQ(message_of(empty, [&] { GgufFile::open(empty); }),
              "tessera_empty.gguf: the file is empty");
    std::filesystem::remove(empty);
}

size_t end_of_data(const std::vector<std::byte>& bytes) {
    const GgufFile file = GgufFile::parse(bytes, "good.gguf");
    size_t end = 0;
    for (const GgufTensor& tensor : file.tensors()) {
        const size_t begin = static_cast<size_t>(tensor.data - bytes.data());
        end = std::max(end, begin + static_cast<size_t>(tensor.bytes));
    }
    return end;
}

// Guards against L8, a truncated file that opens and faults later: every shorter length, so every
// percent and every border of sections and entries.
TEST(BadFiles, EveryTruncationIsRefused) {
    const auto whole = test::read_vector<std::byte>(test::data_path("gguf/types.gguf"));
    const size_t end = end_of_data(whole);
    ASSERT_GT(end, 2000u);
    for (size_t length = 0; length < end; ++length) {
        const std::vector<std::byte> cut(whole.begin(),
                                         whole.begin() + static_cast<std::ptrdiff_t>(length));
        const std::string message =
            message_of("cut.gguf", [&] { GgufFile::parse(cut, "cut.gguf"); });
        ASSERT_TRUE(message.starts_with("cut.gguf: ")) << length << ": " << message;
        const bool explained = length < 4 || message.ends_with(" (incomplete download?)");
        ASSERT_TRUE(explained) << length << ": " << message;
    }
    const auto safe = test::read_vector<std::byte>(test::data_path("gguf/types.safetensors"));
    for (size_t length = 0; length < safe.size(); ++length) {
        const std::vector<std::byte> cut(safe.begin(),
                                         safe.begin() + static_cast<std::ptrdiff_t>(length));
        ASSERT_NE(message_of("cut", [&] { SafetensorsFile::parse(cut, "cut"); }), "no error")
            << length;
    }
}

bool inside(Bytes whole, const std::byte* data, int64_t bytes) {
    return bytes >= 0 && data >= whole.data() && bytes <= (whole.data() + whole.size()) - data;
}

// Guards against a field that is used before it is checked: every byte of a good file replaced in
// turn either gives an error or views that stay inside the file.
TEST(BadFiles, EveryDamagedByteIsHarmless) {
    auto bytes = test::read_vector<std::byte>(test::data_path("gguf/types.gguf"));
    size_t refused = 0;
    for (size_t place = 0; place < bytes.size(); ++place) {
        const std::byte good = bytes[place];
        for (const int change : {0x01, 0x80, 0xff}) {
            bytes[place] = good ^ static_cast<std::byte>(change);
            try {
                const GgufFile file = GgufFile::parse(bytes, "damaged.gguf");
                for (const GgufTensor& tensor : file.tensors())
                    ASSERT_TRUE(inside(bytes, tensor.data, tensor.bytes)) << place;
            } catch (const UserError&) {
                ++refused;
            }
        }
        bytes[place] = good;
    }
    EXPECT_GT(refused, bytes.size() / 4);
    EXPECT_LT(refused, 3 * bytes.size());
}

TEST(BadFiles, EveryDamagedSafetensorsByteIsHarmless) {
    auto bytes = test::read_vector<std::byte>(test::data_path("gguf/types.safetensors"));
    size_t refused = 0;
    for (size_t place = 0; place < bytes.size(); ++place) {
        const std::byte good = bytes[place];
        for (const int change : {0x01, 0x80, 0xff}) {
            bytes[place] = good ^ static_cast<std::byte>(change);
            try {
                const SafetensorsFile file = SafetensorsFile::parse(bytes, "damaged");
                for (const SafetensorsTensor& tensor : file.tensors())
                    ASSERT_TRUE(inside(bytes, tensor.data, tensor.bytes)) << place;
            } catch (const UserError&) {
                ++refused;
            }
        }
        bytes[place] = good;
    }
    EXPECT_GT(refused, bytes.size());
}

}  // namespace
}  // namespace tessera
