// Arbitrary bytes as a safetensors file: refused with a UserError, or tensors that cover the data
// section exactly.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "core/error.h"
#include "gguf/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
    try {
        const auto file = tessera::SafetensorsFile::parse(bytes, "fuzz.safetensors");
        int64_t covered = 0;
        for (const tessera::SafetensorsTensor& tensor : file.tensors()) {
            if (file.find_tensor(tensor.name) != &tensor) std::abort();
            const int64_t room = static_cast<int64_t>(bytes.data() + bytes.size() - tensor.data);
            if (tensor.data < bytes.data() || tensor.bytes < 0 || tensor.bytes > room) std::abort();
            int64_t elements = 1;
            for (const int64_t extent : tensor.shape)
                if (__builtin_mul_overflow(elements, extent, &elements)) elements = 0;
            if (elements != tensor.elements()) std::abort();
            covered += tensor.bytes;
        }
        uint64_t header = 0;
        for (size_t i = 0; i < 8; ++i) header |= uint64_t{data[i]} << (8 * i);
        if (static_cast<uint64_t>(covered) != size - 8 - header) std::abort();
    } catch (const tessera::UserError&) {
    }
    return 0;
}
