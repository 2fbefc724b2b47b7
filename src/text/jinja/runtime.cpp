// Statements and calls; expressions.cpp evaluates the expressions.

#include "text/jinja/runtime.h"

#include <algorithm>

#include "text/jinja/attributes.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/loop.h"
#include "text/jinja/nesting.h"
#include "text/jinja/operations.h"

namespace tessera::jinja {

Value* Scope::find(std::string_view name) {
    for (Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
        for (auto& [key, value] : scope->variables) {
            if (key == name) return &value;
        }
    }
    return nullptr;
}

void Scope::set(const std::string& name, const Value& value) {
    for (auto& [key, old] : variables) {
        if (key != name) continue;
        old = value;
        return;
    }
    variables.emplace_back(name, value);
}

Runtime::Runtime(Heap& heap, const Dict& variables) : heap_(heap), variables_(variables) {}

std::string Runtime::run(const Template& source) {
    std::string result;
    out_ = &result;
    execute(source.body, enter(nullptr, source.scope));
    return result;
}

Runtime::ScopePtr Runtime::enter(const ScopePtr& parent, const ScopeInfo& info) {
    auto scope = std::make_shared<Scope>(parent);
    for (const std::string& name : info.hidden) scope->set(name, Value::missing());
    return scope;
}

void Runtime::write(std::string_view text) {
    const int64_t size = static_cast<int64_t>(text.size());
    heap_.step(size / 512);
    written_ += size;
    if (written_ > kMaxOutputBytes) fail("the template writes more than 64 MiB");
    *out_ += text;
}

void Runtime::write_text(const Value& value) {
    if (!value.is_string()) {
        fail("a filter or call block gives " + std::string(type_name(value)) + " instead of str");
    }
    write(value.view());
}

Runtime::Flow Runtime::capture(const Block& block, const ScopePtr& scope, std::string& captured) {
    std::string* const saved = out_;
    out_ = &captured;
    const Flow flow = execute(block, scope);
    out_ = saved;
    written_ -= static_cast<int64_t>(captured.size());
    return flow;
}

Runtime::Flow Runtime::execute(const Block& block, const ScopePtr& scope) {
    for (const auto& statement : block) {
        const Flow flow = execute(*statement, scope);
        if (flow != Flow::kNormal) return flow;
    }
    return Flow::kNormal;
}

Runtime::Flow Runtime::execute(const Statement& statement, const ScopePtr& scope) {
    const DepthGuard guard(nesting_, kMaxNesting, "the template recurses too deeply");
    heap_.step();
    line_ = statement.line;
    switch (statement.kind) {
        case StatementKind::kText:
            write(statement.text);
            break;
        case StatementKind::kPrint: {
            const Value value = evaluate(*statement.expression, scope);
            if (value.is_string()) {
                write(value.view());
            } else {
                write(to_string(heap_, value));
            }
            break;
        }
        case StatementKind::kIf:
            return if_statement(statement, scope);
        case StatementKind::kFor:
            return for_statement(statement, scope);
        case StatementKind::kSet:
            assign(*statement.target, evaluate(*statement.expression, scope), scope);
            break;
        case StatementKind::kSetBlock:
            return set_block(statement, scope);
        case StatementKind::kMacro:
            scope->set(statement.name, Value(heap_.make<Macro>(&statement, scope)));
            break;
        case StatementKind::kCallBlock:
            call_block(statement, scope);
            break;
        case StatementKind::kFilterBlock:
            return filter_block(statement, scope);
        case StatementKind::kWith:
            return with_statement(statement, scope);
        case StatementKind::kGeneration:
            generation_block(statement, scope);
            break;
        case StatementKind::kBreak:
            return Flow::kBreak;
        case StatementKind::kContinue:
            return Flow::kContinue;
    }
    return Flow::kNormal;
}

Runtime::Flow Runtime::if_statement(const Statement& statement, const ScopePtr& scope) {
    for (const Branch& branch : statement.branches) {
        if (branch.test == nullptr || truthy(evaluate(*branch.test, scope))) {
            return execute(branch.body, scope);
        }
    }
    return Flow::kNormal;
}

Runtime::Flow Runtime::for_statement(const Statement& statement, const ScopePtr& scope) {
    const Value iterable = evaluate(*statement.expression, scope);
    line_ = statement.line;
    return loop_over(statement, scope, iterable, /*depth0=*/0);
}

Next Runtime::filtered_items(const Statement& statement,
                             const ScopePtr& scope,
                             const Value& iterable) {
    return [this, &statement, scope, next = iterate(heap_, iterable)](Value& item) {
        while (next(item)) {
            const auto inner = std::make_shared<Scope>(scope);
            assign(*statement.target, item, inner);
            if (truthy(evaluate(*statement.test, inner))) return true;
        }
        return false;
    };
}

Runtime::Flow Runtime::loop_over(const Statement& statement,
                                 const ScopePtr& scope,
                                 const Value& iterable,
                                 int depth0) {
    const bool is_filtered = statement.test != nullptr;
    Next items =
        is_filtered ? filtered_items(statement, scope, iterable) : iterate(heap_, iterable);
    Loop::Recurse recurse;
    if (statement.recursive) {
        recurse = [this, &statement, scope](const Value& inner, int depth) {
            std::string captured;
            std::string* const saved = std::exchange(out_, &captured);
            loop_over(statement, scope, inner, depth);
            out_ = saved;
            written_ -= static_cast<int64_t>(captured.size());
            return heap_.string(std::move(captured));
        };
    }
    Loop* loop = heap_.make<Loop>(heap_, iterable, std::move(items), is_filtered,
                                  std::move(recurse), depth0);
    bool completed = false;  // Whether any pass reached the end of the body.
    ScopePtr body_scope;
    for (Value item; loop->advance(item);) {
        heap_.step();
        if (body_scope == nullptr || body_scope.use_count() > 1) {
            body_scope = enter(scope, statement.body_scope);
        } else {
            body_scope->variables.clear();
            for (const std::string& name : statement.body_scope.hidden) {
                body_scope->set(name, Value::missing());
            }
        }
        body_scope->set("loop", Value(loop));
        assign(*statement.target, item, body_scope);
        const Flow flow = execute(statement.body, body_scope);
        if (flow == Flow::kBreak) break;
        completed = completed || flow == Flow::kNormal;
    }
    if (completed || statement.else_body.empty()) return Flow::kNormal;
    return execute(statement.else_body, enter(scope, statement.else_scope));
}

Runtime::Flow Runtime::filter_block(const Statement& statement, const ScopePtr& scope) {
    const ScopePtr inner = enter(scope, statement.body_scope);
    std::string captured;
    const Flow flow = capture(statement.body, inner, captured);
    if (flow != Flow::kNormal) return flow;
    const Value text = heap_.string(std::move(captured));
    pending_capture_ = &text;
    write_text(evaluate(*statement.expression, inner));
    return Flow::kNormal;
}

Runtime::Flow Runtime::set_block(const Statement& statement, const ScopePtr& scope) {
    const ScopePtr inner = enter(scope, statement.body_scope);
    std::string captured;
    const Flow flow = capture(statement.body, inner, captured);
    if (flow != Flow::kNormal) return flow;
    Value value = heap_.string(std::move(captured));
    if (statement.expression != nullptr) {
        const Value text = value;
        pending_capture_ = &text;
        value = evaluate(*statement.expression, inner);
    }
    assign(*statement.target, value, scope);
    return Flow::kNormal;
}

Runtime::Flow Runtime::with_statement(const Statement& statement, const ScopePtr& scope) {
    const ScopePtr inner = enter(scope, statement.body_scope);
    for (const auto& [target, value] : statement.assignments) {
        assign(*target, evaluate(*value, scope), inner);
    }
    return execute(statement.body, inner);
}

void Runtime::generation_block(const Statement& statement, const ScopePtr& scope) {
    // Marks what an assistant wrote, for training; it renders as its body.
    execute(statement.body, enter(scope, statement.body_scope));
}

void Runtime::call_block(const Statement& statement, const ScopePtr& scope) {
    const Expression& call_node = *statement.expression;
    const Value callee = evaluate(*call_node.children[0], scope);
    Arguments arguments = arguments_of(call_node, 1, scope);
    arguments.named.emplace_back("caller", Value(heap_.make<Macro>(&statement, scope)));
    write_text(call(callee, arguments));
}

void Runtime::assign(const Expression& target, const Value& value, const ScopePtr& scope) {
    if (target.kind == ExpressionKind::kName) {
        scope->set(target.name, value);
        return;
    }
    if (target.kind == ExpressionKind::kNamespaceTarget) {
        const Value space = look_up(std::string(target.value.view()), scope);
        if (!space.is(Type::kNamespace)) fail("cannot assign attribute on non-namespace object");
        space.as<Namespace>()->attributes.set(heap_, heap_.string(target.name), value);
        return;
    }
    const Next next = iterate(heap_, value);
    Value item;
    for (const ExpressionPtr& part : target.children) {
        if (!next(item)) fail("not enough values to unpack");
        assign(*part, item, scope);
    }
    if (next(item)) fail("too many values to unpack");
}

Value Runtime::call(const Value& callee, const Arguments& arguments) {
    heap_.step();
    switch (callee.type()) {
        case Type::kFunction:
            return callee.as<Function>()->body(*this, arguments);
        case Type::kMacro:
            return call_macro(*callee.as<Macro>(), arguments);
        case Type::kJoiner: {
            Joiner& joiner = *callee.as<Joiner>();
            if (joiner.used) return joiner.separator;
            joiner.used = true;
            return heap_.string("");
        }
        case Type::kLoop: {
            const Bound bound("loop", arguments, {"iterable"}, 1);
            const Loop& loop = *callee.as<Loop>();
            if (!loop.recurse) {
                fail("The loop must have the 'recursive' marker to be called recursively.");
            }
            const DepthGuard guard(calls_, kMaxDepth, "calls are nested more than 200 levels deep");
            return loop.recurse(*bound[0], loop.depth0 + 1);
        }
        case Type::kUndefined:
            fail(callee.text().bytes);
        default:
            fail("'" + std::string(type_name(callee)) + "' object is not callable");
    }
}

Value Runtime::call_macro(const Macro& macro, const Arguments& arguments) {
    const DepthGuard guard(calls_, kMaxDepth, "calls are nested more than 200 levels deep");
    const int line = line_;
    const ScopePtr scope = enter(macro.scope, macro.definition->body_scope);
    bind_macro(*macro.definition, arguments, scope);
    std::string captured;
    capture(macro.definition->body, scope, captured);
    line_ = line;
    return heap_.string(std::move(captured));
}

void Runtime::bind_macro(const Statement& macro, Arguments arguments, const ScopePtr& scope) {
    const auto take_named = [&arguments](const std::string& name) {
        const auto at = std::find_if(arguments.named.begin(), arguments.named.end(),
                                     [&name](const auto& named) { return named.first == name; });
        if (at == arguments.named.end()) return Value::missing();
        const Value value = at->second;
        arguments.named.erase(at);
        return value;
    };
    const std::string title = "macro '" + macro.name + "'";
    const size_t given = std::min(arguments.positional.size(), macro.parameters.size());
    bool found_caller = false;
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
        const std::string& name = macro.parameters[i].name;
        scope->set(name, i < given ? arguments.positional[i] : take_named(name));
        found_caller = found_caller || name == "caller";
    }
    if (macro.uses_caller && !found_caller) {
        const Value caller = take_named("caller");
        const bool absent = caller.is(Type::kMissing) || caller.is_none();
        scope->set("caller", absent ? Value::undefined("No caller defined") : caller);
    }
    if (macro.uses_kwargs) {
        Dict* rest = heap_.make<Dict>();
        for (const auto& [name, value] : arguments.named)
            rest->set(heap_, heap_.string(name), value);
        scope->set("kwargs", Value(rest));
    } else if (!arguments.named.empty()) {
        fail(title + " takes no keyword argument '" + arguments.named[0].first + "'");
    }
    if (macro.uses_varargs) {
        scope->set("varargs",
                   heap_.tuple({arguments.positional.begin() + static_cast<std::ptrdiff_t>(given),
                                arguments.positional.end()}));
    } else if (given < arguments.positional.size()) {
        fail(title + " takes not more than " + std::to_string(macro.parameters.size()) +
             " argument(s)");
    }
    for (const Parameter& parameter : macro.parameters) {
        if (!scope->find(parameter.name)->is(Type::kMissing)) continue;
        scope->set(parameter.name,
                   parameter.fallback != nullptr
                       ? evaluate(*parameter.fallback, scope)
                       : Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
}

Arguments Runtime::arguments_of(const Expression& expression, size_t first, const ScopePtr& scope) {
    Arguments arguments;
    for (size_t i = first; i < expression.children.size(); ++i) {
        arguments.positional.push_back(evaluate(*expression.children[i], scope));
    }
    for (const auto& [name, value] : expression.named) {
        arguments.named.emplace_back(name, evaluate(*value, scope));
    }
    if (expression.spread_positional != nullptr) {
        for (Value& item : collect(heap_, evaluate(*expression.spread_positional, scope))) {
            arguments.positional.push_back(std::move(item));
        }
    }
    if (expression.spread_named != nullptr) {
        const Value spread = evaluate(*expression.spread_named, scope);
        if (!spread.is(Type::kDict)) fail("argument after ** must be a mapping");
        for (const auto& [key, value] : spread.as<Dict>()->entries) {
            if (!key.is_string()) fail("keywords must be strings");
            const auto same = [&key = key](const auto& named) { return named.first == key.view(); };
            if (std::any_of(arguments.named.begin(), arguments.named.end(), same)) {
                fail("multiple values for keyword argument '" + std::string(key.view()) + "'");
            }
            arguments.named.emplace_back(std::string(key.view()), value);
        }
    }
    return arguments;
}

Value Runtime::filter(const std::string& name, const Value& input, const Arguments& arguments) {
    const DepthGuard guard(nesting_, kMaxNesting, "the template recurses too deeply");
    heap_.step();
    const FilterFunction function = find_filter(name);
    if (function == nullptr) fail("No filter named '" + name + "' found.");
    return function(*this, input, arguments);
}

bool Runtime::test(const std::string& name, const Value& input, const Arguments& arguments) {
    const DepthGuard guard(nesting_, kMaxNesting, "the template recurses too deeply");
    heap_.step();
    const TestFunction function = find_test(name);
    if (function == nullptr) fail("No test named '" + name + "' found.");
    return function(*this, input, arguments);
}

}  // namespace tessera::jinja
