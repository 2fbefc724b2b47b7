// The evaluation of expressions of runtime.h.

#include "text/jinja/attributes.h"
#include "text/jinja/format.h"
#include "text/jinja/nesting.h"
#include "text/jinja/operations.h"
#include "text/jinja/runtime.h"

namespace tessera::jinja {

Value Runtime::evaluate(const Expression& node, const ScopePtr& scope) {
    const DepthGuard guard(nesting_, kMaxNesting, "the template recurses too deeply");
    heap_.step();
    switch (node.kind) {
        case ExpressionKind::kConstant:
            return node.value;
        case ExpressionKind::kName:
            return look_up(node.name, scope);
        case ExpressionKind::kAttribute:
            return get_attribute(heap_, evaluate(*node.children[0], scope), node.name);
        case ExpressionKind::kItem: {
            const Value object = evaluate(*node.children[0], scope);
            return get_item(heap_, object, evaluate(*node.children[1], scope));
        }
        case ExpressionKind::kSlice:
            return slice_expression(node, scope);
        case ExpressionKind::kCall:
            return call_expression(node, scope);
        case ExpressionKind::kFilter:
            return filter_expression(node, scope);
        case ExpressionKind::kTest:
            return test_expression(node, scope);
        case ExpressionKind::kNot:
            return Value::boolean(!truthy(evaluate(*node.children[0], scope)));
        case ExpressionKind::kNegative:
        case ExpressionKind::kPositive:
            return negate(evaluate(*node.children[0], scope),
                          node.kind == ExpressionKind::kNegative);
        case ExpressionKind::kAnd:
        case ExpressionKind::kOr: {
            const Value left = evaluate(*node.children[0], scope);
            if (truthy(left) == (node.kind == ExpressionKind::kOr)) return left;
            return evaluate(*node.children[1], scope);
        }
        case ExpressionKind::kCondition:
            return conditional(node, scope);
        case ExpressionKind::kCompare:
            return comparison(node, scope);
        case ExpressionKind::kArithmetic: {
            const Value left = evaluate(*node.children[0], scope);
            return arithmetic(heap_, node.arithmetic, left, evaluate(*node.children[1], scope));
        }
        case ExpressionKind::kConcatenate:
            return concatenation(node, scope);
        case ExpressionKind::kTuple:
        case ExpressionKind::kList:
            return collection(node, scope);
        case ExpressionKind::kDictionary:
            return dictionary(node, scope);
        case ExpressionKind::kNamespaceTarget:
            break;
    }
    fail("this expression can only be assigned to");
}

Value Runtime::look_up(const std::string& name, const ScopePtr& scope) {
    if (const Value* found = scope->find(name)) {
        if (!found->is(Type::kMissing)) return *found;
    } else if (const Value* variable = variables_.find(name)) {
        return *variable;
    }
    return Value::undefined("'" + name + "' is undefined");
}

Value Runtime::call_expression(const Expression& node, const ScopePtr& scope) {
    const Expression& callee = *node.children[0];
    if (callee.kind == ExpressionKind::kAttribute) {
        const Value object = evaluate(*callee.children[0], scope);
        if (has_method(object, callee.name)) {
            const Arguments arguments = arguments_of(node, 1, scope);
            line_ = node.line;
            heap_.step();
            return call_method(*this, object, callee.name, arguments);
        }
        const Value attribute = get_attribute(heap_, object, callee.name);
        const Arguments arguments = arguments_of(node, 1, scope);
        line_ = node.line;
        return call(attribute, arguments);
    }
    const Value function = evaluate(callee, scope);
    const Arguments arguments = arguments_of(node, 1, scope);
    line_ = node.line;
    return call(function, arguments);
}

Value Runtime::filter_expression(const Expression& node, const ScopePtr& scope) {
    const Value input =
        node.children[0] != nullptr ? evaluate(*node.children[0], scope) : *pending_capture_;
    const Arguments arguments = arguments_of(node, 1, scope);
    line_ = node.line;
    return filter(node.name, input, arguments);
}

Value Runtime::test_expression(const Expression& node, const ScopePtr& scope) {
    const Value input = evaluate(*node.children[0], scope);
    const Arguments arguments = arguments_of(node, 1, scope);
    line_ = node.line;
    return Value::boolean(test(node.name, input, arguments));
}

Value Runtime::comparison(const Expression& node, const ScopePtr& scope) {
    Value left = evaluate(*node.children[0], scope);
    for (size_t i = 0; i < node.operators.size(); ++i) {
        const Value right = evaluate(*node.children[i + 1], scope);
        bool holds = false;
        if (node.operators[i] == CompareKind::kIn || node.operators[i] == CompareKind::kNotIn) {
            holds = contains(heap_, right, left) == (node.operators[i] == CompareKind::kIn);
        } else {
            holds = compare(heap_, static_cast<Comparison>(node.operators[i]), left, right);
        }
        if (!holds) return Value::boolean(false);
        left = right;
    }
    return Value::boolean(true);
}

Value Runtime::slice_expression(const Expression& node, const ScopePtr& scope) {
    const Value object = evaluate(*node.children[0], scope);
    Value bounds[3];
    for (size_t i = 0; i < 3; ++i) {
        if (node.children[i + 1] != nullptr) bounds[i] = evaluate(*node.children[i + 1], scope);
    }
    return slice(heap_, object, bounds[0], bounds[1], bounds[2]);
}

Value Runtime::conditional(const Expression& node, const ScopePtr& scope) {
    if (truthy(evaluate(*node.children[0], scope))) return evaluate(*node.children[1], scope);
    if (node.children[2] != nullptr) return evaluate(*node.children[2], scope);
    return Value::undefined(
        "the inline if-expression evaluated to false and no else section was "
        "defined.");
}

Value Runtime::concatenation(const Expression& node, const ScopePtr& scope) {
    std::string out;
    for (const ExpressionPtr& child : node.children) {
        out += to_string(heap_, evaluate(*child, scope));
    }
    return heap_.string(std::move(out));
}

Value Runtime::collection(const Expression& node, const ScopePtr& scope) {
    std::vector<Value> items;
    items.reserve(node.children.size());
    for (const ExpressionPtr& child : node.children) items.push_back(evaluate(*child, scope));
    return node.kind == ExpressionKind::kList ? heap_.list(std::move(items))
                                              : heap_.tuple(std::move(items));
}

Value Runtime::dictionary(const Expression& node, const ScopePtr& scope) {
    Dict* dict = heap_.make<Dict>();
    for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
        const Value key = evaluate(*node.children[i], scope);
        dict->set(heap_, key, evaluate(*node.children[i + 1], scope));
    }
    return Value(dict);
}

}  // namespace tessera::jinja
