#pragma once
// Tokens to the syntax tree, with Jinja2's grammar and precedences.

#include <string>

#include "text/jinja/ast.h"

namespace tessera::jinja {

/// Throws SyntaxError. Expressions may be nested 200 levels deep, statements 100.
Template parse(const std::string& source);

}  // namespace tessera::jinja
