// Arbitrary bytes as a GGUF file: refused with a UserError, or views that stay inside the bytes and
// values that every accessor either converts or refuses.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "core/codec.h"
#include "core/error.h"
#include "gguf/gguf.h"

namespace {

using tessera::GgufFile;
using tessera::GgufTensor;

template <class Access>
void allow_refusal(Access access) {
    try {
        access();
    } catch (const tessera::UserError&) {
    }
}

void read_values(const GgufFile& file) {
    for (const tessera::GgufKeyValue& entry : file.key_values()) {
        if (file.find(entry.key) != &entry.value) std::abort();
        allow_refusal([&] { file.get_int(entry.key); });
        allow_refusal([&] { file.get_float(entry.key); });
        allow_refusal([&] { file.get_bool(entry.key); });
        allow_refusal([&] { file.get_string(entry.key); });
        allow_refusal([&] { file.get_int_array(entry.key); });
        allow_refusal([&] { file.get_float_array(entry.key); });
        allow_refusal([&] { file.get_string_array(entry.key); });
    }
}

/// Decodes the first and the last block; the sanitizer sees a read outside.
void read_tensor(const GgufTensor& tensor, std::span<const std::byte> bytes) {
    const int64_t room = static_cast<int64_t>(bytes.data() + bytes.size() - tensor.data);
    if (tensor.data < bytes.data() || tensor.bytes <= 0 || tensor.bytes > room) std::abort();
    const tessera::DTypeInfo& info = tessera::dtype_info(tensor.dtype);
    if (tensor.elements() / info.block_elements * info.block_bytes != tensor.bytes) std::abort();
    std::vector<float> values(static_cast<size_t>(info.block_elements));
    for (const int64_t offset : {int64_t{0}, tensor.bytes - info.block_bytes})
        tessera::dequantize_row(tensor.dtype, tensor.data + offset, info.block_elements,
                                values.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
    try {
        const GgufFile file = GgufFile::parse(bytes, "fuzz.gguf");
        read_values(file);
        for (const GgufTensor& tensor : file.tensors()) {
            if (file.find_tensor(tensor.name) != &tensor) std::abort();
            read_tensor(tensor, bytes);
        }
    } catch (const tessera::UserError&) {
    }
    return 0;
}
