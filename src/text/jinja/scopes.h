#pragma once
// What Jinja2 decides about names before it runs a template.

#include "text/jinja/ast.h"

namespace tessera::jinja {

/// Fills in ScopeInfo and the special variables of macros, and rejects unknown filters and tests
/// where Jinja2's compiler does: everywhere but in the branches of `if`, where asking for them is
/// fine as long as they are not reached.
void resolve_scopes(Template& source);

}  // namespace tessera::jinja
