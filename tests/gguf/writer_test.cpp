// The writer against a file of the gguf package, and its promises about unfinished files.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "gguf/gguf_writer.h"
#include "tests/core/stored_data.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// A folder of its own that goes away with the test.
class GgufWriterTest : public testing::Test {
  protected:
    GgufWriterTest()
        : folder_(fs::temp_directory_path() / ("tessera_writer_" + std::to_string(::getpid()))) {
        fs::create_directory(folder_);
    }
    ~GgufWriterTest() override { fs::remove_all(folder_); }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    fs::path folder_;
};
using GgufWriterDeathTest = GgufWriterTest;

void copy_tensors(const GgufFile& source, GgufWriter& writer, int64_t piece) {
    for (const GgufTensor& tensor : source.tensors())
        writer.add_tensor(tensor.name, tensor.dtype,
                          {tensor.shape.begin(), tensor.shape.begin() + tensor.rank});
    writer.begin_data();
    for (const GgufTensor& tensor : source.tensors())
        for (int64_t done = 0; done < tensor.bytes; done += piece)
            writer.write(tensor.data + done, std::min(piece, tensor.bytes - done));
}

// Guards against any difference from what the gguf package writes: types, widths, padding, offsets.
TEST_F(GgufWriterTest, CopyIsByteIdentical) {
    const std::string source_path = test::data_path("gguf/types.gguf");
    const GgufFile source = GgufFile::open(source_path);
    GgufWriter writer(path("copy.gguf"));
    for (const GgufKeyValue& entry : source.key_values()) writer.set(entry.key, entry.value);
    copy_tensors(source, writer, 7);
    writer.finish();
    EXPECT_EQ(test::read_text(path("copy.gguf")), test::read_text(source_path));
    EXPECT_FALSE(fs::exists(path("copy.gguf.part")));
}

// Guards against a setter that writes another type than its name says.
TEST_F(GgufWriterTest, SettersWriteTheirTypes) {
    GgufWriter writer(path("keys.gguf"));
    writer.set_u32("general.alignment", 64);
    writer.set_u32("u32", 1);
    writer.set_f32("f32", 0.1f);
    writer.set_bool("bool", true);
    writer.set_string("string", "a");
    writer.set_strings("strings", {"b", ""});
    writer.set_i32s("i32s", {-1, 2147483647});
    writer.set_f32s("f32s", {0.1f});
    writer.set_u32("u32", 4294967295u);
    writer.add_tensor("one", DType::kF32, {1});
    writer.add_tensor("two", DType::kF32, {1, 1});
    writer.begin_data();
    const float number = 3.0f;
    for (int i = 0; i < 2; ++i) writer.write(reinterpret_cast<const std::byte*>(&number), 4);
    writer.finish();
    const GgufFile file = GgufFile::open(path("keys.gguf"));
    EXPECT_EQ(file.alignment(), 64u);
    ASSERT_EQ(file.key_values().size(), 8u);
    EXPECT_EQ(file.key_values()[1].key, "u32");
    EXPECT_EQ(file.get_int("u32"), 4294967295);
    EXPECT_EQ(file.find("f32")->type, GgufType::kF32);
    EXPECT_EQ(file.get_float("f32"), double{0.1f});
    EXPECT_EQ(file.get_bool("bool"), true);
    EXPECT_EQ(file.get_string("string"), "a");
    EXPECT_EQ(*file.get_string_array("strings"), (std::vector<std::string>{"b", ""}));
    EXPECT_EQ(file.get_int_array("i32s"), (std::vector<int64_t>{-1, 2147483647}));
    EXPECT_EQ(file.find("i32s")->element_type, GgufType::kI32);
    EXPECT_EQ(file.get_float_array("f32s"), (std::vector<float>{0.1f}));
    EXPECT_EQ(file.find_tensor("two")->data - file.find_tensor("one")->data, 64);
}

// Guards against an interrupted run that destroys the old file or leaves half a new one.
TEST_F(GgufWriterTest, UnfinishedFilesDoNotReplace) {
    std::ofstream(path("model.gguf")) << "precious";
    {
        GgufWriter writer(path("model.gguf"));
        writer.add_tensor("t", DType::kF32, {8});
        writer.begin_data();
        EXPECT_TRUE(fs::exists(path("model.gguf.part")));
    }
    EXPECT_EQ(test::read_text(path("model.gguf")), "precious");
    EXPECT_FALSE(fs::exists(path("model.gguf.part")));
}

// Guards against an abort or a silent loss when the target cannot be written.
TEST_F(GgufWriterTest, UnwritableTargetsAreUserErrors) {
    try {
        GgufWriter writer(path("no/folder.gguf"));
        FAIL() << "no error";
    } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kFailure);
        EXPECT_EQ(std::string(error.what()),
                  path("no/folder.gguf.part") + ": cannot create: No such file or directory");
    }
    // A folder that takes the place of the file meanwhile fails at the rename, and the part is
    // removed.
    GgufWriter writer(path("taken.gguf"));
    fs::create_directory(path("taken.gguf"));
    writer.begin_data();
    EXPECT_THROW(writer.finish(), UserError);
    EXPECT_FALSE(fs::exists(path("taken.gguf.part")));
}

// Guards against `quantize in.gguf /dev/null`, which as root would leave a plain file in its place.
TEST_F(GgufWriterTest, SpecialFilesAreNotReplaced) {
    ASSERT_EQ(::mkfifo(path("pipe.gguf").c_str(), 0600), 0);
    fs::create_directory(path("folder.gguf"));
    for (const char* name : {"pipe.gguf", "folder.gguf"}) {
        EXPECT_THROW(GgufWriter{path(name)}, UserError) << name;
        EXPECT_FALSE(fs::exists(path(name) + ".part")) << name;
    }
    EXPECT_TRUE(fs::is_fifo(path("pipe.gguf")));
}

// Guards against two runs that write one part file, of which the first to end publishes a mixture.
TEST_F(GgufWriterTest, OneWriterAtATime) {
    GgufWriter first(path("model.gguf"));
    first.add_tensor("t", DType::kF32, {1});
    first.begin_data();
    EXPECT_THROW(GgufWriter{path("model.gguf")}, UserError);
    const float number = 3.0f;
    first.write(reinterpret_cast<const std::byte*>(&number), 4);
    first.finish();
    EXPECT_EQ(GgufFile::open(path("model.gguf")).tensors().size(), 1u);
}

// Guards against callers that write too much, too little or in the wrong order.
TEST_F(GgufWriterDeathTest, MisuseIsABug) {
    const std::vector<std::byte> data(64);
    const auto begun = [&](GgufWriter& writer) {
        writer.add_tensor("t", DType::kF32, {8});
        writer.begin_data();
    };
    GgufWriter writer(path("bug.gguf"));
    EXPECT_DEATH(
        {
            begun(writer);
            writer.write(data.data(), 33);
        },
        "more data than the tensor has");
    EXPECT_DEATH(
        {
            begun(writer);
            writer.write(data.data(), 31);
            writer.finish();
        },
        "every tensor is written");
    EXPECT_DEATH(writer.add_tensor("t", DType::kNVFP4, {32}), "whole blocks");
    EXPECT_DEATH(
        {
            writer.add_tensor("t", DType::kF32, {8});
            writer.add_tensor("t", DType::kF32, {8});
        },
        "declared once");
}

}  // namespace
}  // namespace tessera
