// Jinja2 compiles every scope into a Python function or loop body whose variables are fixed when it
// begins. A name that a scope assigns before it reads it, and that no scope around it knows, begins
// as undefined there, even when the caller passed a variable of that name; this shows when an inner
// scope (a loop, a macro) reads it before the assignment ran. The rules are those of jinja2's
// idtracking: names are seen in source order, inner scopes are not looked into.

#include "text/jinja/scopes.h"

#include <functional>
#include <map>
#include <set>
#include <string>

#include "text/jinja/filters.h"
#include "text/jinja/lexer.h"

namespace tessera::jinja {
namespace {

enum class Load : uint8_t { kParameter, kResolve, kAlias, kUndefined };

/// The names that one scope has seen so far, with how they begin.
struct Symbols {
    const Symbols* parent = nullptr;
    std::map<std::string, Load> names;
    std::set<std::string> stores;

    bool knows(const std::string& name) const {
        return names.contains(name) || (parent != nullptr && parent->knows(name));
    }
    bool parent_knows(const std::string& name) const {
        return parent != nullptr && parent->knows(name);
    }
    void declare(const std::string& name) {
        stores.insert(name);
        names[name] = Load::kParameter;
    }
    void store(const std::string& name) {
        stores.insert(name);
        if (names.contains(name)) return;
        names[name] = parent_knows(name) ? Load::kAlias : Load::kUndefined;
    }
    void load(const std::string& name) {
        if (!knows(name)) names[name] = Load::kResolve;
    }
    /// Takes over what the branches of an `if` saw: what only some of them assign begins with its
    /// outer value.
    void merge(const std::vector<Symbols>& branches) {
        std::set<std::string> added;
        for (const Symbols& branch : branches) {
            for (const std::string& name : branch.stores) {
                if (!stores.contains(name)) added.insert(name);
            }
        }
        for (const Symbols& branch : branches) {
            for (const auto& [name, kind] : branch.names) names[name] = kind;
            stores.insert(branch.stores.begin(), branch.stores.end());
        }
        for (const std::string& name : added) {
            names[name] = parent_knows(name) ? Load::kAlias : Load::kResolve;
        }
    }
    ScopeInfo info() const {
        ScopeInfo result;
        for (const auto& [name, kind] : names) {
            if (kind == Load::kUndefined) result.hidden.push_back(name);
        }
        return result;
    }
};

template <class Visit>
void each_child(const Expression& node, const Visit& visit) {
    for (const ExpressionPtr& child : node.children) {
        if (child != nullptr) visit(*child);
    }
    for (const auto& [name, child] : node.named) visit(*child);
    if (node.spread_positional != nullptr) visit(*node.spread_positional);
    if (node.spread_named != nullptr) visit(*node.spread_named);
}

void load_names(const ExpressionPtr& node, Symbols& symbols) {
    if (node == nullptr) return;
    if (node->kind == ExpressionKind::kName) symbols.load(node->name);
    const std::function<void(const Expression&)> visit = [&](const Expression& child) {
        if (child.kind == ExpressionKind::kName) symbols.load(child.name);
        each_child(child, visit);
    };
    each_child(*node, visit);
}

void store_names(const Expression& target, Symbols& symbols, bool as_parameter) {
    if (target.kind == ExpressionKind::kName) {
        as_parameter ? symbols.declare(target.name) : symbols.store(target.name);
    } else if (target.kind == ExpressionKind::kNamespaceTarget) {
        symbols.load(std::string(target.value.view()));
    }
    for (const ExpressionPtr& child : target.children) store_names(*child, symbols, as_parameter);
}

void see_block(const Block& block, Symbols& symbols);

void see_if(const Statement& node, size_t first, Symbols& symbols) {
    // An elif is seen like an if of its own inside the else branch of Jinja2's tree: its test
    // belongs to the copy of the names that the elifs share.
    load_names(node.branches[first].test, symbols);
    std::vector<Symbols> branches;
    branches.push_back(symbols);
    see_block(node.branches[first].body, branches.back());
    branches.push_back(symbols);
    branches.push_back(symbols);
    for (size_t i = first + 1; i < node.branches.size(); ++i) {
        const Branch& branch = node.branches[i];
        if (branch.test == nullptr) {
            see_block(branch.body, branches[2]);
            continue;
        }
        load_names(branch.test, branches[1]);
        std::vector<Symbols> inner{branches[1]};
        see_block(branch.body, inner[0]);
        branches[1].merge(inner);
    }
    symbols.merge(branches);
}

void see(const Statement& node, Symbols& symbols) {
    switch (node.kind) {
        case StatementKind::kPrint:
        case StatementKind::kFor:
        case StatementKind::kCallBlock:
        case StatementKind::kFilterBlock:
            load_names(node.expression, symbols);
            break;
        case StatementKind::kIf:
            see_if(node, 0, symbols);
            break;
        case StatementKind::kSet:
            load_names(node.expression, symbols);
            store_names(*node.target, symbols, /*as_parameter=*/false);
            break;
        case StatementKind::kSetBlock:
            store_names(*node.target, symbols, /*as_parameter=*/false);
            break;
        case StatementKind::kMacro:
            symbols.store(node.name);
            break;
        case StatementKind::kWith:
            for (const auto& [target, value] : node.assignments) load_names(value, symbols);
            break;
        default:
            break;
    }
}

void see_block(const Block& block, Symbols& symbols) {
    for (const auto& statement : block) see(*statement, symbols);
}

/// Which of the special names a macro body reads without having assigned them.
class SpecialNames {
  public:
    bool caller = false, varargs = false, kwargs = false;

    void visit(const Block& block) {
        for (const auto& node : block) {
            visit_target(node->target);
            visit(node->expression);
            visit(node->test);
            for (const auto& [target, value] : node->assignments) visit_target(target);
            for (const auto& [target, value] : node->assignments) visit(value);
            for (const Parameter& parameter : node->parameters) {
                hidden_.insert(parameter.name);
                visit(parameter.fallback);
            }
            for (const Branch& branch : node->branches) {
                visit(branch.test);
                visit(branch.body);
            }
            visit(node->body);
            visit(node->else_body);
        }
    }

  private:
    void visit(const ExpressionPtr& node) {
        if (node != nullptr) visit(*node);
    }
    void visit(const Expression& node) {
        if (node.kind == ExpressionKind::kName && !hidden_.contains(node.name)) {
            caller = caller || node.name == "caller";
            varargs = varargs || node.name == "varargs";
            kwargs = kwargs || node.name == "kwargs";
        }
        each_child(node, [this](const Expression& child) { visit(child); });
    }
    void visit_target(const ExpressionPtr& node) {
        if (node == nullptr) return;
        if (node->kind == ExpressionKind::kName) hidden_.insert(node->name);
        for (const ExpressionPtr& child : node->children) visit_target(child);
    }

    std::set<std::string> hidden_;
};

class Resolver {
  public:
    void run(Template& source) {
        Symbols root;
        see_block(source.body, root);
        source.scope = root.info();
        block(source.body, root, /*soft=*/false);
    }

  private:
    void block(Block& body, const Symbols& symbols, bool soft) {
        for (const auto& node : body) statement(*node, symbols, soft);
    }

    void statement(Statement& node, const Symbols& symbols, bool soft) {
        switch (node.kind) {
            case StatementKind::kIf:
                for (Branch& branch : node.branches) {
                    check(branch.test, /*soft=*/true);
                    block(branch.body, symbols, /*soft=*/true);
                }
                break;
            case StatementKind::kFor:
                for_statement(node, symbols, soft);
                break;
            case StatementKind::kMacro:
                function(node, symbols);
                break;
            case StatementKind::kCallBlock:
                function(node, symbols);
                check(node.expression, soft);
                break;
            case StatementKind::kFilterBlock: {
                Symbols inner{&symbols, {}, {}};
                see_block(node.body, inner);
                load_names(node.expression, inner);
                inner_block(node, inner);
                check(node.expression, /*soft=*/false);
                break;
            }
            case StatementKind::kSetBlock:
            case StatementKind::kGeneration: {
                Symbols inner{&symbols, {}, {}};
                see_block(node.body, inner);
                inner_block(node, inner);
                check(node.expression, /*soft=*/false);
                break;
            }
            case StatementKind::kWith: {
                Symbols inner{&symbols, {}, {}};
                for (const auto& [target, value] : node.assignments) {
                    store_names(*target, inner, /*as_parameter=*/true);
                    check(value, soft);
                }
                see_block(node.body, inner);
                inner_block(node, inner);
                break;
            }
            default:
                check(node.expression, soft);
        }
    }

    void inner_block(Statement& node, const Symbols& inner) {
        node.body_scope = inner.info();
        block(node.body, inner, /*soft=*/false);
    }

    void for_statement(Statement& node, const Symbols& symbols, bool soft) {
        Symbols body{&symbols, {}, {}}, otherwise{&symbols, {}, {}};
        body.declare("loop");
        store_names(*node.target, body, /*as_parameter=*/true);
        see_block(node.body, body);
        check(node.test, /*soft=*/false);
        check(node.expression, soft);
        inner_block(node, body);
        see_block(node.else_body, otherwise);
        node.else_scope = otherwise.info();
        block(node.else_body, otherwise, /*soft=*/false);
    }

    void function(Statement& node, const Symbols& symbols) {
        SpecialNames special;
        special.visit(node.body);
        Symbols inner{&symbols, {}, {}};
        bool has_caller = false, has_varargs = false, has_kwargs = false;
        for (const Parameter& parameter : node.parameters) {
            inner.declare(parameter.name);
            has_caller = has_caller || parameter.name == "caller";
            has_varargs = has_varargs || parameter.name == "varargs";
            has_kwargs = has_kwargs || parameter.name == "kwargs";
            if (special.caller && parameter.name == "caller" && parameter.fallback == nullptr) {
                throw SyntaxError("the argument \"caller\" of a macro needs a default", node.line);
            }
        }
        for (const Parameter& parameter : node.parameters) {
            load_names(parameter.fallback, inner);
            check(parameter.fallback, /*soft=*/false);
        }
        node.uses_caller = special.caller;
        node.uses_varargs = special.varargs && !has_varargs;
        node.uses_kwargs = special.kwargs && !has_kwargs;
        if (special.caller && !has_caller) inner.declare("caller");
        if (node.uses_varargs) inner.declare("varargs");
        if (node.uses_kwargs) inner.declare("kwargs");
        see_block(node.body, inner);
        inner_block(node, inner);
    }

    void check(const ExpressionPtr& node, bool soft) const {
        if (node != nullptr) check(*node, soft);
    }

    void check(const Expression& node, bool soft) const {
        if (node.kind == ExpressionKind::kCondition) soft = true;
        if (!soft && node.kind == ExpressionKind::kFilter && find_filter(node.name) == nullptr) {
            throw SyntaxError("No filter named '" + node.name + "'.", node.line);
        }
        if (!soft && node.kind == ExpressionKind::kTest && find_test(node.name) == nullptr) {
            throw SyntaxError("No test named '" + node.name + "'.", node.line);
        }
        each_child(node, [this, soft](const Expression& child) { check(child, soft); });
    }
};

}  // namespace

void resolve_scopes(Template& source) {
    Resolver().run(source);
}

}  // namespace tessera::jinja
