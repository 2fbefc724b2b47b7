// Good files: types.gguf by the gguf package, types.safetensors by the safetensors package
// (scripts/oracles/formats.py), split models by scripts/oracles/bad_gguf.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>

#include "core/error.h"
#include "gguf/gguf.h"
#include "gguf/safetensors.h"
#include "tests/core/stored_data.h"

namespace tessera {
namespace {

GgufFile types_file() {
    return GgufFile::open(test::data_path("gguf/types.gguf"));
}

std::string error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const UserError& error) {
        const std::string message = error.what();
        const size_t colon = message.find(": ");
        return message.substr(colon + 2);
    }
    return "no error";
}

// Guards against a value read in the wrong width or sign.
TEST(GgufReader, ScalarsOfEveryType) {
    const GgufFile file = types_file();
    EXPECT_EQ(file.version(), 3u);
    EXPECT_EQ(file.alignment(), 32u);
    EXPECT_EQ(file.get_int("scalar.u8"), 200);
    EXPECT_EQ(file.get_int("scalar.i8"), -100);
    EXPECT_EQ(file.get_int("scalar.u16"), 60000);
    EXPECT_EQ(file.get_int("scalar.i16"), -30000);
    EXPECT_EQ(file.get_int("scalar.u32"), 4000000000);
    EXPECT_EQ(file.get_int("scalar.i32"), -2000000000);
    EXPECT_EQ(file.get_int("scalar.i64"), std::numeric_limits<int64_t>::min());
    EXPECT_EQ(file.get_float("scalar.f32"), double{0.1f});
    EXPECT_EQ(file.get_float("scalar.f64"), 0.1);
    EXPECT_EQ(file.get_bool("scalar.bool"), true);
    EXPECT_EQ(file.get_string("scalar.string"), "caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd");
    EXPECT_EQ(file.get_string("general.architecture"), "test");
    EXPECT_EQ(std::get<uint64_t>(file.find("scalar.u64")->value),
              std::numeric_limits<uint64_t>::max());
}

// Guards against L13: array elements taken for another type (u8 read as i32, f64 as f32).
TEST(GgufReader, ArraysOfEveryType) {
    const GgufFile file = types_file();
    using Ints = std::vector<int64_t>;
    EXPECT_EQ(file.get_int_array("array.u8"), (Ints{0, 255}));
    EXPECT_EQ(file.get_int_array("array.i8"), (Ints{-128, 127}));
    EXPECT_EQ(file.get_int_array("array.u16"), (Ints{0, 65535}));
    EXPECT_EQ(file.get_int_array("array.i16"), (Ints{-32768, 32767}));
    EXPECT_EQ(file.get_int_array("array.u32"), (Ints{0, 4294967295}));
    EXPECT_EQ(file.get_int_array("array.i32"), (Ints{-2147483648, 2147483647}));
    EXPECT_EQ(file.get_int_array("array.i64"),
              (Ints{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}));
    EXPECT_EQ(file.get_int_array("array.bool"), (Ints{1, 0, 1}));
    EXPECT_EQ(file.get_float_array("array.f32"), (std::vector<float>{0.5f, -1.25f}));
    const auto large = file.get_float_array("array.f64");
    ASSERT_TRUE(large);
    EXPECT_EQ(large->at(0), std::numeric_limits<float>::infinity());
    const std::vector<std::string>* strings = file.get_string_array("array.string");
    ASSERT_NE(strings, nullptr);
    EXPECT_EQ(*strings, (std::vector<std::string>{"", "a", "\xc3\xa9\xc3\xa9"}));
}

// Guards against a key of the wrong type read as zero, and an unclear message about it.
TEST(GgufReader, WrongTypesAreNamed) {
    const GgufFile file = types_file();
    const std::vector<std::pair<std::string, std::function<void()>>> cases = {
        {"key 'scalar.f32' is f32, expected an integer", [&] { file.get_int("scalar.f32"); }},
        {"key 'scalar.bool' is bool, expected an integer", [&] { file.get_int("scalar.bool"); }},
        {"key 'array.u8' is an array of u8, expected an integer",
         [&] { file.get_int("array.u8"); }},
        {"key 'scalar.u64' is 18446744073709551615, which is too large",
         [&] { file.get_int("scalar.u64"); }},
        {"key 'scalar.u32' is u32, expected a floating-point number",
         [&] { file.get_float("scalar.u32"); }},
        {"key 'scalar.u8' is u8, expected a bool", [&] { file.get_bool("scalar.u8"); }},
        {"key 'scalar.i64' is i64, expected a string", [&] { file.get_string("scalar.i64"); }},
        {"key 'scalar.i32' is i32, expected an array of integers",
         [&] { file.get_int_array("scalar.i32"); }},
        {"key 'array.f32' is an array of f32, expected an array of integers",
         [&] { file.get_int_array("array.f32"); }},
        {"key 'array.u64' has the element 9223372036854775808, which is too large",
         [&] { file.get_int_array("array.u64"); }},
        {"key 'array.string' is an array of string, expected an array of floating-point numbers",
         [&] { file.get_float_array("array.string"); }},
        {"key 'array.i16' is an array of i16, expected an array of strings",
         [&] { file.get_string_array("array.i16"); }}};
    for (const auto& [message, action] : cases) EXPECT_EQ(error_of(action), message);
}

// Guards against an absent key that is not told apart from a zero.
TEST(GgufReader, AbsentKeysAreNothing) {
    const GgufFile file = types_file();
    EXPECT_EQ(file.find("no.key"), nullptr);
    EXPECT_EQ(file.find_tensor("no.tensor"), nullptr);
    EXPECT_FALSE(file.get_int("no.key"));
    EXPECT_FALSE(file.get_float("no.key"));
    EXPECT_FALSE(file.get_bool("no.key"));
    EXPECT_FALSE(file.get_string("no.key"));
    EXPECT_FALSE(file.get_int_array("no.key"));
    EXPECT_FALSE(file.get_float_array("no.key"));
    EXPECT_EQ(file.get_string_array("no.key"), nullptr);
}

// Guards against axes in the wrong order and data at a wrong offset.
TEST(GgufReader, TensorsAreWhereTheyWereWritten) {
    GgufFile moved = types_file();
    const GgufFile file = std::move(moved);
    ASSERT_EQ(file.tensors().size(), 6u);
    const GgufTensor* vector = file.find_tensor("vector.f32");
    ASSERT_NE(vector, nullptr);
    EXPECT_EQ(vector->rank, 1);
    EXPECT_EQ(vector->elements(), 3);
    std::array<float, 3> floats{};
    std::memcpy(floats.data(), vector->data, sizeof(floats));
    EXPECT_EQ(floats, (std::array<float, 3>{0.0f, 1.0f, 2.0f}));
    const GgufTensor* cube = file.find_tensor("cube.f16");
    ASSERT_NE(cube, nullptr);
    EXPECT_EQ(cube->shape, (std::array<int64_t, 4>{5, 3, 2, 1}));
    EXPECT_EQ(cube->bytes, 60);
    const GgufTensor* four = file.find_tensor("four.i32");
    ASSERT_NE(four, nullptr);
    EXPECT_EQ(four->rank, 4);
    std::array<int32_t, 24> integers{};
    std::memcpy(integers.data(), four->data, sizeof(integers));
    for (int32_t i = 0; i < 24; ++i) EXPECT_EQ(integers[static_cast<size_t>(i)], i);
    const GgufTensor* matrix = file.find_tensor("matrix.nvfp4");
    ASSERT_NE(matrix, nullptr);
    EXPECT_EQ(matrix->dtype, DType::kNVFP4);
    EXPECT_EQ(matrix->shape, (std::array<int64_t, 4>{256, 2, 1, 1}));
    EXPECT_EQ(matrix->bytes, 288);
}

// Guards against a split model that opens from its first shard only, or loses a shard.
TEST(GgufReader, SplitModelsOpenFromAnyShard) {
    const std::string prefix = test::data_path("gguf/split/good-0000");
    for (const char* number : {"1", "2", "3"}) {
        const GgufFile file = GgufFile::open(prefix + number + "-of-00003.gguf");
        EXPECT_EQ(file.get_string("general.architecture"), "llama");
        ASSERT_EQ(file.tensors().size(), 2u);
        ASSERT_NE(file.find_tensor("one"), nullptr);
        ASSERT_NE(file.find_tensor("two"), nullptr);
        EXPECT_EQ(file.find_tensor("two")->data[31], std::byte{0});
        size_t bytes = 0;
        for (const char* shard : {"1", "2", "3"})
            bytes += test::read_text(prefix + shard + "-of-00003.gguf").size();
        EXPECT_EQ(file.file_bytes(), static_cast<int64_t>(bytes));
    }
}

// Guards against pages that do not come back with the file's contents, and against touching memory
// that is not a mapping of ours.
TEST(GgufReader, ReleasedPagesComeBack) {
    const GgufFile mapped = types_file();
    const auto bytes = test::read_vector<std::byte>(test::data_path("gguf/types.gguf"));
    const GgufFile parsed = GgufFile::parse(bytes, "types.gguf");
    for (size_t i = 0; i < mapped.tensors().size(); ++i) {
        const GgufTensor& tensor = mapped.tensors()[i];
        mapped.release_pages(tensor);
        parsed.release_pages(parsed.tensors()[i]);
        EXPECT_EQ(
            std::memcmp(tensor.data, parsed.tensors()[i].data, static_cast<size_t>(tensor.bytes)),
            0);
    }
}

// Guards against a quadratic step in names or strings: a vocabulary of 50 000 tokens.
TEST(GgufReader, LargeVocabulariesOpenFast) {
    std::string bytes("GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 24);
    const auto put = [&bytes](auto value) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    put(uint64_t{1});
    bytes += 'v';
    put(uint32_t{9});
    put(uint32_t{8});
    put(uint64_t{50000});
    for (int token = 0; token < 50000; ++token) {
        const std::string text = "token" + std::to_string(token);
        put(static_cast<uint64_t>(text.size()));
        bytes += text;
    }
    const std::span<const std::byte> view = std::as_bytes(std::span(bytes));
    const auto start = std::chrono::steady_clock::now();
    const GgufFile file = GgufFile::parse(view, "vocabulary.gguf");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    ASSERT_NE(file.get_string_array("v"), nullptr);
    EXPECT_EQ(file.get_string_array("v")->back(), "token49999");
    EXPECT_LT(seconds.count(), 0.5);  // some milliseconds; sanitizers and a busy machine take more
}

// Guards against wrong types, shapes or places in safetensors files.
TEST(SafetensorsReader, TensorsAreWhereTheyWereWritten) {
    const SafetensorsFile file = SafetensorsFile::open(test::data_path("gguf/types.safetensors"));
    ASSERT_EQ(file.tensors().size(), 7u);
    EXPECT_EQ(file.metadata("format"), "np");
    EXPECT_FALSE(file.metadata("no.key"));
    EXPECT_EQ(file.find_tensor("no.tensor"), nullptr);
    struct Expected {
        const char* name;
        const char* type;
        std::vector<int64_t> shape;
        std::vector<uint8_t> first;  ///< leading bytes of the data
    };
    const std::vector<Expected> tensors = {
        {"model.norm.weight", "F32", {5}, {0, 0, 0, 0, 0, 0, 0x80, 0x3e}},
        {"model.codes", "U8", {2, 6}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
        {"model.half", "F16", {1, 2, 3}, {0, 0, 0, 0x3c, 0, 0x40}},
        {"model.bf16", "BF16", {3}, {0, 0, 0x80, 0x3f, 0, 0x40}},
        {"model.scale", "F8_E4M3", {1, 2}, {0x30, 0x7e}},
        {"model.scalar", "F32", {}, {0, 0, 0x20, 0x40}},
        {"model.empty", "F32", {0, 4}, {}}};
    for (const Expected& expected : tensors) {
        const SafetensorsTensor* tensor = file.find_tensor(expected.name);
        ASSERT_NE(tensor, nullptr) << expected.name;
        EXPECT_EQ(safetensors_type_name(tensor->type), expected.type) << expected.name;
        EXPECT_EQ(tensor->shape, expected.shape) << expected.name;
        const auto* data = reinterpret_cast<const uint8_t*>(tensor->data);
        EXPECT_TRUE(std::equal(expected.first.begin(), expected.first.end(), data))
            << expected.name;
    }
    EXPECT_EQ(file.find_tensor("model.half")->elements(), 6);
    EXPECT_EQ(file.find_tensor("model.scalar")->elements(), 1);
    EXPECT_EQ(file.find_tensor("model.empty")->bytes, 0);
}

}  // namespace
}  // namespace tessera
