#pragma once
// Source text to tokens, with Jinja2's white space rules (trim_blocks and lstrip_blocks on).

#include <cstdint>
#include <string>
#include <vector>

#include "text/jinja/value.h"

namespace tessera::jinja {

/// A source that cannot be read; `what()` does not name the line.
class SyntaxError : public Error {
  public:
    SyntaxError(const std::string& message, int line) : Error(message), line_(line) {}
    int line() const { return line_; }

  private:
    int line_;
};

enum class TokenType : uint8_t {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kNumber,
    kOperator,
    kEnd
};

struct Token {
    TokenType type;
    int line;
    std::string text;  ///< the name, the sign, the data or the unescaped string
    Value value;       ///< of a number
};

/// The tokens of `source`, which must be UTF-8; the last one is kEnd. Throws SyntaxError.
std::vector<Token> tokenize(const std::string& source);

}  // namespace tessera::jinja
