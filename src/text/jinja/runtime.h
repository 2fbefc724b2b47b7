#pragma once
// Runs a parsed template once over one set of variables.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace tessera::jinja {

/// The variables of one stretch of source. Macros keep the scope they were defined in alive.
struct Scope {
    explicit Scope(std::shared_ptr<Scope> parent_in) : parent(std::move(parent_in)) {}
    Value* find(std::string_view name);
    void set(const std::string& name, const Value& value);

    std::shared_ptr<Scope> parent;
    std::vector<std::pair<std::string, Value>> variables;
};

/// A macro, or the body of a call block.
struct Macro : Object {
    Macro(const Statement* definition_in, std::shared_ptr<Scope> scope_in)
        : Object(Type::kMacro), definition(definition_in), scope(std::move(scope_in)) {}
    const Statement* definition;
    std::shared_ptr<Scope> scope;
};

class Runtime {
  public:
    /// `variables` is a Dict with string keys.
    Runtime(Heap& heap, const Dict& variables);

    std::string run(const Template& source);
    /// Source line of the statement or expression at work, for messages.
    int line() const { return line_; }

    Heap& heap() { return heap_; }
    Value call(const Value& callee, const Arguments& arguments);
    Value filter(const std::string& name, const Value& input, const Arguments& arguments);
    bool test(const std::string& name, const Value& input, const Arguments& arguments);

  private:
    using ScopePtr = std::shared_ptr<Scope>;
    enum class Flow : uint8_t { kNormal, kBreak, kContinue };

    // Statements.
    Flow execute(const Block& block, const ScopePtr& scope);
    Flow execute(const Statement& statement, const ScopePtr& scope);
    Flow if_statement(const Statement& statement, const ScopePtr& scope);
    Flow for_statement(const Statement& statement, const ScopePtr& scope);
    Flow loop_over(const Statement& statement,
                   const ScopePtr& scope,
                   const Value& iterable,
                   int depth0);
    Next filtered_items(const Statement& statement, const ScopePtr& scope, const Value& iterable);
    Flow filter_block(const Statement& statement, const ScopePtr& scope);
    Flow set_block(const Statement& statement, const ScopePtr& scope);
    Flow with_statement(const Statement& statement, const ScopePtr& scope);
    void call_block(const Statement& statement, const ScopePtr& scope);
    void generation_block(const Statement& statement, const ScopePtr& scope);
    void assign(const Expression& target, const Value& value, const ScopePtr& scope);
    ScopePtr enter(const ScopePtr& parent, const ScopeInfo& info);
    void write(std::string_view text);
    /// What a filter or call block gives, which must be a string.
    void write_text(const Value& value);
    /// Runs `block` with its output going into a string.
    Flow capture(const Block& block, const ScopePtr& scope, std::string& captured);

    // Calls.
    Value call_macro(const Macro& macro, const Arguments& arguments);
    void bind_macro(const Statement& macro, Arguments arguments, const ScopePtr& scope);
    Arguments arguments_of(const Expression& expression, size_t first, const ScopePtr& scope);

    // Expressions.
    Value evaluate(const Expression& expression, const ScopePtr& scope);
    Value look_up(const std::string& name, const ScopePtr& scope);
    Value call_expression(const Expression& expression, const ScopePtr& scope);
    Value filter_expression(const Expression& expression, const ScopePtr& scope);
    Value test_expression(const Expression& expression, const ScopePtr& scope);
    Value comparison(const Expression& expression, const ScopePtr& scope);
    Value slice_expression(const Expression& expression, const ScopePtr& scope);
    Value conditional(const Expression& expression, const ScopePtr& scope);
    Value concatenation(const Expression& expression, const ScopePtr& scope);
    Value collection(const Expression& expression, const ScopePtr& scope);
    Value dictionary(const Expression& expression, const ScopePtr& scope);

    Heap& heap_;
    const Dict& variables_;
    std::string* out_ = nullptr;
    int line_ = 1;
    int calls_ = 0;
    int nesting_ = 0;
    int64_t written_ = 0;                     ///< bytes in all output buffers that are open
    const Value* pending_capture_ = nullptr;  ///< what the filter of a filter block works on
};

}  // namespace tessera::jinja
